"""The language model: its text from a grammar, the FLOP of a token, its speed, a training on two workers."""

import gzip
import hashlib
import re
from pathlib import Path

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy
from torch.utils.flop_counter import FlopCounterMode

from clustertrain import load_job
from support.example_modules import clustertrain, example_of, set_options

EXAMPLE = Path(__file__).parents[2] / "examples" / "language_model"
JOB = EXAMPLE / "job.yaml"
CPU = torch.device("cpu")


example = example_of(EXAMPLE, "language_model", "make_text")


def test_the_text_is_made_again_by_its_script_and_matches_the_job_and_the_readme(example):
    content, nats = example["make_text"].text(example["make_text"].BYTES)
    archive = (EXAMPLE / "stories.tar.gz").read_bytes()
    # What zlib makes of it differs between its versions; the tar inside may not.
    assert gzip.decompress(example["make_text"].archive_bytes(content)) == gzip.decompress(archive)
    sha256 = hashlib.sha256(archive).hexdigest()
    assert load_job(JOB).data["stories"].sha256 == sha256
    readme = (EXAMPLE / "README.md").read_text()
    assert f"{nats:.4f} nats per byte" in readme and sha256 in readme
    assert f"a loss of {example['make_text'].entropy_of_bytes(content):.2f} nats" in readme


def test_windows_do_not_overlap_and_what_follows_is_one_byte_later(example, tmp_path):
    module = example["language_model"]
    path = tmp_path / "stories.txt"
    path.write_bytes(bytes(i % 251 for i in range(130 * 8 + 5)))
    tokens, following = module.windows(path, 8, slice(None)).tensors
    assert tokens.shape == following.shape == (130, 8) and tokens.dtype == torch.uint8
    assert tokens[1].tolist() == list(range(8, 16)) and following[1].tolist() == list(range(9, 17))
    held_out = module.windows(path, 8, slice(-module.HELD_OUT, None)).tensors[0]
    assert torch.equal(held_out, tokens[2:])
    path.write_bytes(bytes(128 * 8 + 1))
    with pytest.raises(ValueError, match=r"has 1025 bytes: \(1025 - 1\) / 8 = 128 windows, and 128 are held"):
        module.windows(path, 8, slice(None))


def test_no_output_depends_on_a_later_byte(example):
    torch.manual_seed(0)
    model = example["language_model"].GPT(layers=2, width=16, heads=2, context=12)
    tokens = torch.randint(0, 256, (1, 12))
    changed = tokens.clone()
    changed[0, 7] += 1
    one, other = model(tokens), model(changed)
    assert one.shape == (1, 12, 256)
    assert torch.equal(one[:, :7], other[:, :7]) and not torch.allclose(one[:, 7:], other[:, 7:])


@pytest.mark.parametrize(("layers", "width", "context"), [(1, 16, 8), (2, 32, 16)])
def test_the_flops_of_a_token_are_those_that_torch_counts(example, layers, width, context):
    """In a forward and a backward pass. The mask of attention saves none of them in this kernel."""
    module = example["language_model"]
    model = module.GPT(layers, width, 2, context)
    tokens = torch.randint(0, 256, (3, context))
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
    assert counter.get_total_flops() == 3 * context * module.flops_per_token(model)


@pytest.mark.run
@pytest.mark.nightly  # in CI: the tests above; test_examples.py trains the digits on two workers
@pytest.mark.parametrize("compiled", ["false", "true"])
def test_two_workers_train_and_show_their_speed(tmp_path, compiled):
    sets = {
        "train.compile": compiled,
        "args": "{lr: 0.01, layers: 1, width: 32, heads: 2, context: 64, speed_every: 20}",
        "train.epochs": "",
        "train.steps": 60,
        "train.eval_every": "{steps: 60}",
        "resources.cpus_per_worker": 0.5,
        "storage": tmp_path,
    }
    options = set_options(sets)
    done = clustertrain("run", str(JOB), *options)
    loss = float(re.search(r"evaluated at step 60: loss ([\d.]+)", done.stdout)[1])
    assert loss < 2.7, "ln(256) = 5.55 at the start; 3.09 with the frequencies of the bytes only"
    shown = clustertrain("logs", str(JOB), *options, "--rank", "0").stdout
    peak = r"[\d.e-]+ TFLOP/s \(bfloat16, measured\)"
    line = rf"step (\d+): [\d,]+ tokens/s × 0\.15 MFLOP, MFU [\d.]+% of 2 × {peak}$"
    assert re.findall(line, shown, re.MULTILINE) == ["21", "41"], shown
