"""Arrow schemas of a run directory's tables, with the meaning of each column in its field's metadata.

New columns are added at the end and are nullable: older fragments have null there.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

Row = dict[str, Any]
"""One row of a table: values by column."""


def _field(name: str, kind: pa.DataType, doc: str) -> pa.Field:
    return pa.field(name, kind, metadata={"doc": doc})


_TEXT, _INT, _REAL, _TIME = pa.string(), pa.int64(), pa.float64(), pa.timestamp("us", tz="UTC")

# The origin of a measured number, at the end of every table. The store fills in `time` and `versions`.
_PROVENANCE = [
    _field("space", _TEXT, "fingerprint of the search space"),
    _field("supernet", _TEXT, "fingerprint of the supernet's weights"),
    _field("data", _TEXT, "fingerprint of the dataset, its splits and sizes"),
    _field("seed", _INT, "seed of the run that measured it"),
    _field("device", _TEXT, "what it was measured on: cpu, or the name of the GPU"),
    _field("versions", _TEXT, "raynas, torch, timm, ray and python, as name=version"),
    _field("time", _TIME, "when the row was written, UTC"),
]

_ARCH = [
    _field("arch", _TEXT, "id of the architecture (12 hex digits)"),
    _field("network", _TEXT, "id of the network that the architecture computes"),
    _field("values", _TEXT, "the architecture itself as JSON, as in an arch.yaml"),
]

_COST = [
    _field("macs", _INT, "multiply-accumulates of one image"),
    _field("params", _INT, "parameters"),
]

_CALIBRATION = [
    _field("calibration_images", _INT, "training images that batch norms were calibrated on; null without these"),
    _field("calibration_batch_size", _INT, "images of a batch of these"),
    _field("calibration_seed", _INT, "seed of their draw"),
]

_INPUT = [
    _field("height", _INT, "of its images, in pixels"),
    _field("width", _INT, "of the same"),
]


def _table(doc: str, *fields: pa.Field) -> pa.Schema:
    return pa.schema([*fields, *_PROVENANCE], metadata={"doc": doc})


SCHEMAS: dict[str, pa.Schema] = {
    "scores": _table(
        "One row for each subnet scored with inherited weights on images of the search split.",
        *_ARCH,
        *_COST,
        _field("status", _TEXT, "ok, or failed"),
        _field("reason", _TEXT, "why it failed; null where it did not"),
        _field("accuracy", _REAL, "top-1, 0 to 1; null where it failed"),
        _field("top5", _REAL, "top-5, 0 to 1; null at five classes or fewer"),
        _field("loss", _REAL, "mean cross-entropy, nats"),
        _field("images", _INT, "number of images"),
        _field("precision", _TEXT, "fp32, or the autocast type: bf16, fp16"),
        _field("batch_size", _INT, "images in one forward pass"),
        _field("seconds", _REAL, "time of the passes over the images"),
        _field("replica", _TEXT, "which replica scored it"),
        *_CALIBRATION,
        _field("calibration_seconds", _REAL, "time of the passes over these"),
    ),
    "correct": _table(
        "Per-image correctness of each row of scores, for paired comparison. Same key, same order of images.",
        _field("arch", _TEXT, "id of the architecture"),
        _field("images", _INT, "number of images, and of bits that count"),
        _field("precision", _TEXT, "as in scores"),
        _field("top1", pa.binary(), "one bit an image, numpy.packbits order (first image = highest bit)"),
        _field("top5", pa.binary(), "the same for top-5; null at five classes or fewer"),
        *_CALIBRATION,
    ),
    "training": _table(
        "One row for each epoch of a training or retraining.",
        _field("what", _TEXT, "supernet, or the id of the network that is retrained"),
        _field("epoch", _INT, "counted from 1"),
        _field("step", _INT, "optimiser steps so far"),
        _field("loss", _REAL, "mean training loss of the epoch"),
        _field("learning_rate", _REAL, "at the end of the epoch"),
        _field("gradient_norm", _REAL, "mean before clipping"),
        _field("images", _INT, "images seen in the epoch, over all workers"),
        _field("seconds", _REAL, "wall time of the epoch"),
        _field("workers", _INT, "number of workers"),
        _field("event", _TEXT, "rollback or verdict of the health check; else null"),
        _field("conflict", _REAL, "share of layers and steps where the largest's gradient and the others' conflict"),
        _field("conflict_layers", _TEXT, "JSON: the same of every layer, by its name; null where it was not asked for"),
    ),
    "probes": _table(
        "Fixed subnets scored after every epoch of the supernet's training.",
        _field("role", _TEXT, "smallest, q1, median, q3, largest"),
        *_ARCH,
        *_COST,
        _field("epoch", _INT, "counted from 1"),
        _field("accuracy", _REAL, "top-1 on the search split, 0 to 1"),
        _field("loss", _REAL, "mean cross-entropy, nats"),
        _field("images", _INT, "number of images"),
    ),
    "networks": _table(
        "One row for each finished network: extracted, fine-tuned or retrained.",
        *_ARCH,
        *_COST,
        _field("how", _TEXT, "inherited, finetuned, scratch, resized"),
        _field("trained_on", _TEXT, "train, or train+search"),
        _field("epochs", _INT, "epochs of its own training; 0 when inherited"),
        _field("path", _TEXT, "its folder in the run directory"),
        _field("weights", _TEXT, "fingerprint of its weights"),
        _field("loss", _REAL, "last training loss"),
        _field("accuracy", _REAL, "top-1 on the search split; null when that was trained on"),
        _field("seconds", _REAL, "wall time of its training"),
        *_INPUT,
        _field("start", _TEXT, "what its training began with: supernet, the folder of a network; null for nothing"),
    ),
    "evaluations": _table(
        "One row for each reading of the test split by one finished network.",
        *_ARCH,
        *_COST,
        _field("how", _TEXT, "inherited, finetuned, scratch, resized"),
        _field("path", _TEXT, "the network's folder"),
        _field("weights", _TEXT, "fingerprint of its weights"),
        _field("accuracy", _REAL, "top-1 on the test split, 0 to 1"),
        _field("top5", _REAL, "top-5; null at five classes or fewer"),
        _field("loss", _REAL, "mean cross-entropy, nats"),
        _field("images", _INT, "number of test images"),
        _field("reading", _INT, "how often the test split had been read, this time included"),
        _field("seconds", _REAL, "time of the passes"),
        *_INPUT,
    ),
    "latencies": _table(
        "One row for each subnet whose forward passes were timed, on one device under one set of conditions.",
        *_ARCH,
        *_COST,
        _field("status", _TEXT, "ok, or failed"),
        _field("reason", _TEXT, "why it failed; null where it did not"),
        _field("ms", _REAL, "median milliseconds of a pass over the batch; null where it failed"),
        _field("ms_q1", _REAL, "lower quartile of the same"),
        _field("ms_q3", _REAL, "upper quartile of the same"),
        _field("passes", _INT, "number of passes timed"),
        _field("ratio", _REAL, "median ratio to the pass of the space's smallest subnet in the same turn"),
        _field("images_per_s", _REAL, "throughput at the median"),
        _field("predicted_ms", _REAL, "what was predicted before it was timed; null where nothing was"),
        _field("batch_size", _INT, "images of one pass"),
        _field("dtype", _TEXT, "of weights and images: fp32, bf16, fp16"),
        _field("threads", _INT, "torch threads"),
        _field("torch", _TEXT, "version of torch"),
        _field("host", _TEXT, "name of the machine"),
    ),
    "rankings": _table(
        "One row for each correlation of a ranking: how well one quantity of the same networks goes with another.",
        _field("x", _TEXT, "macs, inherited, truth, scratch, finetuned: all but the first are accuracies"),
        _field("y", _TEXT, "the same"),
        _field("bucket", _INT, "which range of MACs, the lowest is 0; null for all"),
        _field("low", _REAL, "where the range begins"),
        _field("high", _REAL, "where it ends"),
        _field("statistic", _TEXT, "pearson, spearman or kendall (tau-b)"),
        _field("value", _REAL, "null where there are too few networks or one quantity is constant"),
        _field("lower", _REAL, "of its 95 % bootstrap interval"),
        _field("upper", _REAL, "of the same"),
        _field("networks", _INT, "how many"),
    ),
    "phases": _table(
        "One row for each attempt of a phase of the run, however it ended: what it took.",
        _field("phase", _TEXT, "supernet, search, retraining, ranking, timing"),
        _field("name", _TEXT, "of the search, or how networks were trained; else null"),
        _field("began", _TIME, "when, UTC; no two rows have the same"),
        _field("status", _TEXT, "finished, stopped (by an error or by hand), or killed"),
        _field("seconds", _REAL, "wall time; of a killed one up to a minute less"),
        _field("joules", _REAL, "energy of what was measured; null where nothing was"),
        _field("measured", _TEXT, "the parts whose energy was measured, such as 2 GPUs, 1 CPU package"),
        _field("unmeasured", _TEXT, "what could not be measured (all of the time), and why; else null"),
        _field("machines", _INT, "machines that took part"),
    ),
    "spaces": _table(
        "One row for each space that space evolution measured, written when its iteration is over.",
        _field("iteration", _INT, "counted from 0, the initial space"),
        _field("name", _TEXT, "of the space; its file is spaces/<iteration>.yaml"),
        _field("cardinality", _TEXT, "how many archs it holds, in full"),
        _field("archs", _INT, "scored subnets that the rest is of"),
        _field("mean", _REAL, "their mean top-1 error, 0 to 1"),
        _field("top", _REAL, "the mean error of the best of them, the top tier"),
        _field("error", _REAL, "the E-T error: the mean of both"),
        _field("standard_error", _REAL, "of the E-T error, by the bootstrap over subnets"),
        _field("best", _TEXT, "id of the best subnet"),
        _field("best_error", _REAL, "its error"),
        _field("best_macs", _INT, "its multiply-accumulates"),
        _field("best_params", _INT, "its parameters"),
        _field("mean_macs", _REAL, "of the scored subnets"),
        _field("seconds", _REAL, "wall time of training and scoring, all attempts"),
        _field("ended", _TEXT, "why no other space follows; null where one does"),
    ),
    "space_moves": _table(
        "One row for each axis (a dimension of a stage) of each of those spaces: what was measured, where it goes.",
        _field("iteration", _INT, "of the space that was measured"),
        _field("axis", _TEXT, "such as stages.2.blocks.*.heads"),
        _field("members", _TEXT, "JSON: the dimensions that move together"),
        _field("choices", _TEXT, "JSON: of each of them, in ascending cost"),
        _field("archs", pa.list_(_INT), "scored subnets in the sub-space of each choice"),
        _field("means", pa.list_(_REAL), "their mean errors"),
        _field("tops", pa.list_(_REAL), "the mean errors of their top tiers"),
        _field("errors", pa.list_(_REAL), "E-T errors of the sub-spaces"),
        _field("standard_errors", pa.list_(_REAL), "of the E-T errors"),
        _field("slope", _REAL, "of the line through them, in the settings' units; NaN where there is none"),
        _field("slope_error", _REAL, "its standard error"),
        _field("steps", _INT, "towards dearer choices, before anything was taken back"),
        _field("step", _REAL, "the size of one"),
        _field("sure", _REAL, "share of the bootstrap resamples that give the same number of steps"),
        _field("after", _TEXT, "JSON: the choices of the next space"),
        _field("notes", pa.list_(_TEXT), "why it stays, and which choices were removed"),
    ),
    "space_scores": _table(
        "One row for each subnet that a space was measured by.",
        _field("iteration", _INT, "of the space"),
        *_ARCH,
        *_COST,
        _field("accuracy", _REAL, "top-1, 0 to 1; null where it failed"),
    ),
    "timings": _table(
        "Named durations: benchmarks and the steps of a pipeline.",
        _field("what", _TEXT, "what was timed"),
        _field("seconds", _REAL, "wall time"),
        _field("count", _INT, "how many things it did"),
        _field("detail", _TEXT, "JSON: whatever the timing depends on"),
    ),
}
