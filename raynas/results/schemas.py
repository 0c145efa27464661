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

# Origin of a measured number, at the end of every table. The store fills in `time` and `versions`.
_PROVENANCE = [
    _field("space", _TEXT, "fingerprint of the search space"),
    _field("supernet", _TEXT, "fingerprint of the supernet's weights"),
    _field("data", _TEXT, "fingerprint of the dataset, its splits and sizes"),
    _field("seed", _INT, "seed of the run that measured it"),
    _field("device", _TEXT, "device of the measurement: cpu, or the name of the GPU"),
    _field("versions", _TEXT, "raynas, torch, timm, ray and python, as name=version"),
    _field("time", _TIME, "time of writing the row, UTC"),
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
    _field("calibration_images", _INT, "training images that batch norms were calibrated on; null without calibration"),
    _field("calibration_batch_size", _INT, "images in a batch of the calibration"),
    _field("calibration_seed", _INT, "seed of the draw of the calibration images"),
]

_INPUT = [
    _field("height", _INT, "height of the network's images in pixels"),
    _field("width", _INT, "width of the network's images in pixels"),
]


def _table(doc: str, *fields: pa.Field) -> pa.Schema:
    return pa.schema([*fields, *_PROVENANCE], metadata={"doc": doc})


SCHEMAS: dict[str, pa.Schema] = {
    "scores": _table(
        "One row for each subnet scored with inherited weights on images of the search split.",
        *_ARCH,
        *_COST,
        _field("status", _TEXT, "ok, or failed"),
        _field("reason", _TEXT, "reason of the failure, else null"),
        _field("accuracy", _REAL, "top-1, 0 to 1; null if it failed"),
        _field("top5", _REAL, "top-5, 0 to 1; null at five classes or fewer"),
        _field("loss", _REAL, "mean cross-entropy, nats"),
        _field("images", _INT, "number of images"),
        _field("precision", _TEXT, "fp32, or the autocast type: bf16, fp16"),
        _field("batch_size", _INT, "images in one forward pass"),
        _field("seconds", _REAL, "time of the passes over the images"),
        _field("replica", _TEXT, "name of the replica that scored it"),
        *_CALIBRATION,
        _field("calibration_seconds", _REAL, "time of the passes over the calibration images"),
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
    "proxies": _table(
        "One row for each training-free score of an arch that a rung of a search asked for.",
        *_ARCH,
        _field("by", _TEXT, "name of the score, such as az_nas; its seed is that of the weights"),
        _field("value", _REAL, "the score, the larger the better"),
        _field("images", _INT, "number of images of a whole score; up to 64 of them are what the score looks at"),
        _field("seconds", _REAL, "time of scoring"),
    ),
    "blocks": _table(
        "One row for each block of images of an arch in a search with racing or rungs. Same key as scores, which has "
        "whole scores.",
        *_ARCH,
        _field("images", _INT, "number of images of a whole score"),
        _field("first", _INT, "number of images before the block, in the shuffled order of races"),
        _field("last", _INT, "number of images after the block"),
        _field("accuracy", _REAL, "top-1 on the block, 0 to 1"),
        _field("loss", _REAL, "mean cross-entropy on the block, nats"),
        _field("top1", pa.binary(), "one bit an image of the block in that order, as in correct"),
        _field("top5", pa.binary(), "the same for top-5; null at five classes or fewer"),
        _field("precision", _TEXT, "as in scores"),
        _field("batch_size", _INT, "images in one forward pass"),
        _field("seconds", _REAL, "time of the passes over the block"),
        _field("replica", _TEXT, "name of the replica that scored it"),
        *_CALIBRATION,
        _field("calibration_seconds", _REAL, "time of the calibration; null if it was done for an earlier block"),
    ),
    "training": _table(
        "One row for each epoch of a training or retraining.",
        _field("what", _TEXT, "supernet, or the id of the network that is retrained"),
        _field("epoch", _INT, "counted from 1"),
        _field("step", _INT, "optimiser steps so far"),
        _field("loss", _REAL, "mean training loss of the epoch"),
        _field("learning_rate", _REAL, "learning rate at the end of the epoch"),
        _field("gradient_norm", _REAL, "mean norm before clipping"),
        _field("images", _INT, "images seen in the epoch, over all workers"),
        _field("seconds", _REAL, "wall time of the epoch"),
        _field("workers", _INT, "number of workers"),
        _field("event", _TEXT, "rollback or verdict of the health check, else null"),
        _field(
            "conflict",
            _REAL,
            "share of layers and steps where the largest subnet's gradient and the others' conflict",
        ),
        _field("conflict_layers", _TEXT, "JSON: the same share by layer; null if it was not asked for"),
        _field(
            "memory",
            _INT,
            "peak bytes of a worker so far, the largest of all: of its GPU, else of its process",
        ),
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
        _field("how", _TEXT, "inherited, finetuned, scratch, resized; of an adapted model pretrained, transferred"),
        _field("trained_on", _TEXT, "train, or train+search"),
        _field("epochs", _INT, "epochs of its own training; 0 for inherited weights"),
        _field("path", _TEXT, "its folder in the run directory"),
        _field("weights", _TEXT, "fingerprint of its weights"),
        _field("loss", _REAL, "last training loss"),
        _field("accuracy", _REAL, "top-1 on the search split, 0 to 1; null if the network was trained on it"),
        _field("seconds", _REAL, "wall time of its training"),
        *_INPUT,
        _field("start", _TEXT, "origin of its initial weights: supernet, or a network's folder; null for random ones"),
    ),
    "evaluations": _table(
        "One row for each reading of the test split by one finished network.",
        *_ARCH,
        *_COST,
        _field("how", _TEXT, "inherited, finetuned, scratch, resized; of an adapted model pretrained, transferred"),
        _field("path", _TEXT, "the network's folder"),
        _field("weights", _TEXT, "fingerprint of its weights"),
        _field("accuracy", _REAL, "top-1 on the test split, 0 to 1"),
        _field("top5", _REAL, "top-5; null at five classes or fewer"),
        _field("loss", _REAL, "mean cross-entropy, nats"),
        _field("images", _INT, "number of test images"),
        _field("test", _TEXT, "fingerprint of the test images; null in rows of older versions"),
        _field("reading", _INT, "number of readings of the test split so far, this one included"),
        _field("seconds", _REAL, "time of the passes"),
        *_INPUT,
        _field("distances", pa.list_(pa.list_(_REAL)), "mean attention distance of each head, pixels, block by block"),
        _field("similarities", pa.list_(_REAL), "mean cosine similarity of heads, block by block; null for one head"),
    ),
    "latencies": _table(
        "One row for each subnet whose forward passes were timed, on one device under one set of conditions.",
        *_ARCH,
        *_COST,
        _field("status", _TEXT, "ok, or failed"),
        _field("reason", _TEXT, "reason of the failure, else null"),
        _field("ms", _REAL, "median milliseconds of a pass over the batch; null if it failed"),
        _field("ms_q1", _REAL, "lower quartile of the milliseconds"),
        _field("ms_q3", _REAL, "upper quartile of the milliseconds"),
        _field("passes", _INT, "number of passes timed"),
        _field("ratio", _REAL, "median ratio to the pass of the space's smallest subnet in the same turn"),
        _field("images_per_s", _REAL, "throughput at the median"),
        _field("predicted_ms", _REAL, "milliseconds predicted before the timing; null without a prediction"),
        _field("batch_size", _INT, "images in one pass"),
        _field("dtype", _TEXT, "type of weights and images: fp32, bf16, fp16"),
        _field("threads", _INT, "torch threads"),
        _field("torch", _TEXT, "version of torch"),
        _field("host", _TEXT, "name of the machine"),
    ),
    "rankings": _table(
        "One row for each correlation of two quantities over the same networks.",
        _field(
            "x",
            _TEXT,
            "first quantity: macs, a training-free score, or accuracies (inherited, truth, scratch, finetuned)",
        ),
        _field("y", _TEXT, "second quantity: accuracies"),
        _field("bucket", _INT, "number of the range of MACs, from 0 for the lowest; null for all networks"),
        _field("low", _REAL, "lower end of the range in MACs"),
        _field("high", _REAL, "upper end of the range in MACs"),
        _field("statistic", _TEXT, "pearson, spearman or kendall (tau-b)"),
        _field("value", _REAL, "the correlation; null for too few networks or a constant quantity"),
        _field("lower", _REAL, "lower end of the 95 % bootstrap interval"),
        _field("upper", _REAL, "upper end of the 95 % bootstrap interval"),
        _field("networks", _INT, "number of networks"),
    ),
    "phases": _table(
        "One row for each attempt of a phase of the run, with its time and energy, however it ended.",
        _field("phase", _TEXT, "supernet, search, retraining, ranking, timing, ordering"),
        _field("name", _TEXT, "name of the search, or the way networks were trained; else null"),
        _field("networks", pa.list_(_TEXT), "names of the networks that were to be trained; null for other phases"),
        _field("began", _TIME, "time of the start, UTC; different in every row"),
        _field("status", _TEXT, "finished, stopped (by an error or by hand), or killed"),
        _field("seconds", _REAL, "wall time; up to a minute less than the true one if it was killed"),
        _field("joules", _REAL, "energy of the measured parts; null if none was measured"),
        _field("measured", _TEXT, "parts whose energy was measured, such as 2 GPUs, 1 CPU package"),
        _field("unmeasured", _TEXT, "parts that were not, or not always, measured, and the reason; else null"),
        _field("machines", _INT, "number of machines that took part"),
        _field("progress", _TEXT, "how far it is, such as 40/100 scored; null if other tables say so"),
        _field("newest", _TEXT, "its newest numbers, such as the best so far; null if other tables have them"),
    ),
    "spaces": _table(
        "One row for each space that space evolution measured, written at the end of its iteration.",
        _field("iteration", _INT, "counted from 0, the initial space"),
        _field("name", _TEXT, "name of the space; its file is spaces/<iteration>.yaml"),
        _field("cardinality", _TEXT, "exact number of archs in the space, as text"),
        _field("archs", _INT, "number of scored subnets"),
        _field("mean", _REAL, "mean top-1 error of the scored subnets, 0 to 1"),
        _field("top", _REAL, "mean error of the top tier, the best of them"),
        _field("error", _REAL, "E-T error, the mean of both errors"),
        _field("standard_error", _REAL, "standard error of the E-T error, by the bootstrap over subnets"),
        _field("best", _TEXT, "id of the best subnet"),
        _field("best_error", _REAL, "error of the best subnet"),
        _field("best_macs", _INT, "multiply-accumulates of the best subnet"),
        _field("best_params", _INT, "parameters of the best subnet"),
        _field("mean_macs", _REAL, "mean multiply-accumulates of the scored subnets"),
        _field("seconds", _REAL, "wall time of training and scoring, over all attempts"),
        _field("ended", _TEXT, "reason why the evolution ended here; null if it goes on"),
    ),
    "space_moves": _table(
        "One row for each axis (a dimension of a stage) of each measured space, with its measurement and its move.",
        _field("iteration", _INT, "iteration of the measured space"),
        _field("axis", _TEXT, "name of the axis, such as stages.2.blocks.*.heads"),
        _field("members", _TEXT, "JSON: the dimensions that move together"),
        _field("choices", _TEXT, "JSON: choices of each of these dimensions, in ascending cost"),
        _field("archs", pa.list_(_INT), "number of scored subnets in the sub-space of each choice"),
        _field("means", pa.list_(_REAL), "mean errors of the sub-spaces"),
        _field("tops", pa.list_(_REAL), "mean errors of the sub-spaces' top tiers"),
        _field("errors", pa.list_(_REAL), "E-T errors of the sub-spaces"),
        _field("standard_errors", pa.list_(_REAL), "standard errors of the E-T errors"),
        _field("slope", _REAL, "slope of the line through the E-T errors, in the settings' units; NaN without a line"),
        _field("slope_error", _REAL, "standard error of the slope"),
        _field("steps", _INT, "number of steps by the update rule, positive towards more expensive choices"),
        _field("step", _REAL, "size of one step"),
        _field("sure", _REAL, "share of the bootstrap resamples with the same number of steps"),
        _field("after", _TEXT, "JSON: choices of the next space"),
        _field("notes", pa.list_(_TEXT), "reasons why the axis stays or choices were removed"),
    ),
    "space_scores": _table(
        "One row for each scored subnet of a measured space.",
        _field("iteration", _INT, "iteration of the space"),
        *_ARCH,
        *_COST,
        _field("accuracy", _REAL, "top-1, 0 to 1; null if it failed"),
    ),
    "trials": _table(
        "Trials of an experiment: a row when one begins, and one when it ends. The newest row of a number counts.",
        _field("number", _INT, "number of the trial, from 0"),
        _field("name", _TEXT, "name of the trial"),
        _field("values", _TEXT, "JSON: what is different in this trial, by name"),
        _field("run", _TEXT, "its run directory, in that of the experiment; empty for the experiment's own"),
        _field("state", _TEXT, "running, finished, pruned or failed"),
        _field("results", _TEXT, "JSON: what a finished trial came to, by name"),
        _field("reason", _TEXT, "why it failed or was pruned, else null"),
        _field("seconds", _REAL, "wall time of its last attempt; 0 at its beginning"),
        _field("attempt", _INT, "number of the command's attempt that began it, from 1"),
    ),
    "trial_steps": _table(
        "Values that trials of an experiment reported on the way.",
        _field("number", _INT, "number of the trial"),
        _field("step", _INT, "step of the trial, such as its epoch"),
        _field("value", _REAL, "the value, such as the accuracy of the probes"),
        _field("attempt", _INT, "number of the command's attempt"),
    ),
    "timings": _table(
        "Named durations: benchmarks and the steps of a pipeline.",
        _field("what", _TEXT, "name of the timed work"),
        _field("seconds", _REAL, "wall time"),
        _field("count", _INT, "number of repetitions or items"),
        _field("detail", _TEXT, "JSON: conditions of the timing"),
    ),
}
