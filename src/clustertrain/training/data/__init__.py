"""From data sets and shards to batches on the device.

sampling.py          which samples a rank takes at which step
shard_order.py       which samples of shards a rank takes, in which order
shards.py            Shards: a data set of WebDataset shards
tar_shard.py         one shard: its samples, and what shows that it is torn
streaming.py         an IterableDataset: read by every rank, split among them
loader_kinds.py      how each kind of data is read: map-style, shards, stream
loading.py           from sample ids to a batch on the device
same_samples.py      three samples of a map-style data set are the same on all ranks
loader_processes.py  how many loader processes a rank starts by itself
"""
