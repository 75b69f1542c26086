"""From data sets to batches on the device.

sampling.py          which samples a rank takes at which step
streaming.py         an IterableDataset: read by every rank, split among them
split_stream.py      an IterableDataset that splits itself by rank, and has a state
loader_kinds.py      how each kind of data is read: map-style, stream
loading.py           from sample ids to a batch on the device
same_samples.py      three samples of a map-style data set are the same on all ranks
"""
