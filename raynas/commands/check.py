"""Check data, a preset and a cluster before hours are spent on them.

On a cluster (RAY_ADDRESS), or with any of --run, --workers, --replicas, --cpus and --gpu, a table says in about a
minute what every node has and lacks: versions, CPUs and GPUs, the connection between workers, the data, the run
directory, and memory. Nodes that are missing are asked for. Then every image is read, as without a cluster: what the
data holds, what cannot be read, and how images will be read.
"""

from __future__ import annotations

import argparse

import raynas
from raynas.commands.options import add_cpus_and_gpu, add_data, add_set, doing, given, natural, number_or_range
from raynas.errors import UserError

EXAMPLES = """\
raynas check --data /data/flowers
raynas check autoformer --data /data/flowers
raynas check autoformer --data s3://bucket/imagenet --run s3://bucket/runs/first --workers 4 --replicas 4 --gpu"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("preset", nargs="?", help="preset to carry out: a shipped one, or a YAML file")
    parser.add_argument("--run", dest="run_dir", metavar="DIR", help="run directory that every node must reach")
    add_data(parser)
    add_set(parser)
    parser.add_argument("--workers", type=number_or_range, metavar="N", help="training workers to find room for")
    parser.add_argument("--replicas", type=natural, metavar="N", help="scoring actors to find room for")
    add_cpus_and_gpu(parser, "worker and replica")


def run(options: argparse.Namespace) -> None:
    with doing("checking") as progress:
        findings = raynas.check(**given(options), progress=progress)
    if failed := [finding.what for finding in findings if finding.mend is not None]:
        raise UserError(f"{len(failed)} of {len(findings)} checks failed: {', '.join(failed)} (see above)")
