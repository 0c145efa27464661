"""Checks of a cluster before hours are spent on it: its nodes, data, run directory, memory and network."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from raynas.cluster.connection import is_local, on_loopback, ray_cluster
from raynas.cluster.growth import NodeType, held_nodes, node_types
from raynas.cluster.nodes import living_nodes
from raynas.cluster.resources import Resources
from raynas.data.config import DataConfig
from raynas.errors import UserError, reason
from raynas.filesystem import open_filesystem
from raynas.locations import hide_secrets, is_uri
from raynas.phases.check_memory import check_memory, check_shared_memory
from raynas.phases.check_node import HERE, Probe, Seen, absent, clear, look, unseen
from raynas.phases.check_place import Finding, Place
from raynas.phases.where import placed
from raynas.presets.preset import Preset
from raynas.progress.reporter import Activity, Progress, reporter, silent
from raynas.text import columns, duration

NODES_S = 900.0  # for nodes that have to be started
DASHBOARD_S = 5.0


def check_cluster(
    preset: Preset | None,
    data: DataConfig | None,
    resources: Resources,
    run_dir: str | None = None,
    progress: Progress = silent,
) -> list[Finding]:
    """Check what a command would need, on all nodes of the cluster; see `raynas.check`.

    Nodes that are missing are asked for. Without workers, replicas and `RAY_ADDRESS` only this machine is looked at.

    Args:
        preset: the preset to carry out; None for none.
        data: its dataset, or that of no preset; None for none.
        run_dir: path or URI of the run directory; None for none.
    """
    shown, resources = reporter(progress), placed(resources)
    findings: list[Finding] = []
    with shown.doing("checking") as activity:
        on_ray = bool(resources.workers or resources.replicas or os.environ.get("RAY_ADDRESS"))
        if not on_ray:
            return [*_on_nodes(Place((), resources), preset, data, run_dir, activity)]
        with ray_cluster(cpus=int(resources.together["CPU"])):
            kinds = [] if is_local() else node_types()
            with _grown(resources, kinds, activity) as missing:
                place = Place(tuple(living_nodes()), resources)
                findings.append(_room(place, kinds, missing))
                findings += _on_nodes(place, preset, data, run_dir, activity)
            if resources.workers and findings[0].mend is None:
                activity.update(detail="an all-reduce between the workers")
                findings.append(_all_reduce(place, shown))
            if not is_local():
                findings.append(_dashboard())
    return findings


def _on_nodes(
    place: Place, preset: Preset | None, data: DataConfig | None, run_dir: str | None, activity: Activity
) -> Iterator[Finding]:
    """Yield what the nodes say, and what follows from it."""
    activity.update(detail="asking every node")
    with _probe(run_dir, place) as probe:
        answers = place.ask(look, data, probe)
        seen = {name: answer for name, answer in answers.items() if isinstance(answer, Seen)}
        yield _versions(answers)
        if not seen:
            return  # nothing is known of any node
        yield _devices(place, seen)
        if data is not None:
            yield _data(data, seen)
        if probe is not None:
            yield _run(place, probe, seen)
    yield check_shared_memory(place, seen)
    if preset is not None:
        yield from _teachers(place, preset)
        activity.update(detail="what the preset needs")
        yield from check_memory(place, preset, seen)


# -- nodes -------------------------------------------------------------------------------------------------------------


@contextmanager
def _grown(resources: Resources, kinds: Sequence[NodeType], activity: Activity) -> Iterator[str | None]:
    """Hold the nodes that the resources need in the block, which gets what is missing, in words."""
    if not (count := max(resources.most_workers, resources.replicas)):
        yield None
        return

    def tell(lack: str) -> None:
        limit = f"; for {duration(NODES_S)} at most" if kinds else ""  # else it is given up soon
        activity.update(detail=f"asked for {_wish(resources)}: {lack}{limit}")

    with held_nodes(resources.of(1), count, NODES_S, tell, grows=bool(kinds)) as missing:
        yield missing


def _wish(resources: Resources) -> str:
    return f"{max(resources.most_workers, resources.replicas)} x ({_amounts(resources.of(1))})"


def _room(place: Place, kinds: Sequence[NodeType], missing: str | None) -> Finding:
    """Say what the cluster is and can become, and whether it has room for the resources."""
    totals = {name: sum(node.resources.get(name, 0) for node in place.nodes) for name in ("CPU", "GPU")}
    found = f"{len(place.nodes)} node(s) with {_amounts(totals)}"
    found += f"; it can grow to {', '.join(map(str, kinds))}" if kinds else ""
    if missing is None:
        asked = place.resources.workers or place.resources.replicas
        return Finding("nodes", found + (f"; {_wish(place.resources)} can be had" if asked else ""))
    each = place.resources.of(1)
    fits = [kind.name for kind in kinds if all(kind.resources.get(name, 0) >= need for name, need in each.items())]
    mend = "ask for fewer workers, replicas or CPUs"
    if kinds and not fits:
        mend = f"no node type holds {_amounts(each)}: give fewer --cpus, or add a node type to the cluster's file"
    elif kinds:
        mend += f", or raise max_workers of {' or '.join(fits)} in the cluster's file"
    elif is_local():
        mend += ", or use a cluster (RAY_ADDRESS)"
    return Finding("nodes", f"{found}; {_wish(place.resources)} cannot be had: {missing}", mend)


def _amounts(resources: Mapping[str, float]) -> str:
    return ", ".join(f"{amount:g} {name}" for name, amount in resources.items() if amount) or "no CPU"


def _versions(answers: Mapping[str, object]) -> Finding:
    """Compare versions over the nodes and with this process."""
    here = look(None, None).versions
    silent_ = {name: error for name, error in answers.items() if isinstance(error, Exception)}
    if silent_:
        told = "; ".join(f"{name}: {reason(error)}" for name, error in silent_.items())
        if all(isinstance(error, TimeoutError) for error in silent_.values()):
            mend = "see what keeps the node busy, and check again: nothing else is known of it"
        else:
            mend = "install the same raynas on every node (cluster.yaml does)"
        return Finding("versions", told, mend)
    others = {
        f"{name} has {package} {seen.versions[package]}"
        for name, seen in answers.items()
        if isinstance(seen, Seen)
        for package, version in here.items()
        if seen.versions[package] != version
    }
    found = ", ".join(f"{package} {version}" for package, version in here.items())
    if others:
        return Finding("versions", f"here {found}; {'; '.join(sorted(others))}", "install the same on every node")
    return Finding("versions", found + (f", equal on {len(answers)} node(s)" if len(answers) > 1 else ""))


def _devices(place: Place, seen: Mapping[str, Seen]) -> Finding:
    """Compare what Ray counts on each node with what is there; every GPU has multiplied matrices."""
    lines, mends = [], []
    counted = {node.name: node.resources for node in place.nodes}
    for name, this in seen.items():
        gpus = f", {len(this.gpus)} GPU ({', '.join(dict.fromkeys(this.gpus))})" if this.gpus else ""
        ray_says = counted.get(name, {})
        lines.append(f"{name}: {this.cpus} CPU{gpus}")
        if place.nodes:
            lines[-1] += f", for Ray {_amounts({kind: ray_says.get(kind, 0) for kind in ('CPU', 'GPU')})}"
        if this.gpu_fault is not None:
            mends.append(f"{name}: {this.gpu_fault}: look at nvidia-smi there, and at the driver")
        elif ray_says.get("GPU", 0) > len(this.gpus):
            mends.append(f"{name}: Ray counts GPUs that torch does not find: a CUDA build of torch, and its driver")
    if place.resources.gpus and not place.nodes and not any(this.gpus for this in seen.values()):
        mends.append("torch finds no GPU here: leave out --gpu, or install a CUDA build of torch and the driver")
    return Finding("CPUs and GPUs", "; ".join(lines), "; ".join(mends) or None)


# -- data and run directory --------------------------------------------------------------------------------------------


def _teachers(place: Place, preset: Preset) -> Iterator[Finding]:
    """Ask every node for the files of the teachers of all trainings."""
    taught = [recipe.teachers.models for recipe in (preset.recipe, *preset.retrain_recipes) if recipe.teachers]
    given = [location for models in taught for each in models for location in (each.weights, each.run) if location]
    if not given:
        return
    lacks = {node: missing for node, missing in place.ask(absent, list(dict.fromkeys(given))).items() if missing}
    mend = "give files of teachers on a mount that every node has, and a run by such a path or a URI"
    if lacks:
        told = [f"{node} lacks {_named([it] if isinstance(it, Exception) else it)}" for node, it in lacks.items()]
        yield Finding("teachers", "; ".join(told), mend)
        return
    yield Finding("teachers", f"every node finds {_named(dict.fromkeys(given))}")


def _named(locations: Any) -> str:
    return ", ".join(hide_secrets(str(location)) for location in locations)


def _data(data: DataConfig, seen: Mapping[str, Seen]) -> Finding:
    """Compare the dataset over the nodes."""
    name = hide_secrets(data.name)
    faults = {node: this.data_fault for node, this in seen.items() if this.data_fault is not None}
    mend = "give a path on a mount that every node has, or a URI such as s3://bucket/images"
    if faults:
        told = "; ".join(f"{node}: {fault}" for node, fault in faults.items())
        return Finding("data", told, mend if len(faults) < len(seen) else "give --data as every node can read it")
    different = {this.data for this in seen.values()}
    if len(different) > 1:
        told = ", ".join(f"{node} {this.data}" for node, this in seen.items())
        return Finding("data", f"{name} is not the same everywhere: {told}", mend)
    return Finding("data", f"{name}: names, sizes and first bytes are {' '.join(map(str, different))} on every node")


@contextmanager
def _probe(run_dir: str | None, place: Place) -> Iterator[Probe | None]:
    """Name a folder in the run directory for the nodes' files, and delete it in the end."""
    if run_dir is None:
        yield None
        return
    filesystem, root = open_filesystem(run_dir)
    location = run_dir if is_uri(run_dir) else os.path.abspath(run_dir)
    probe = Probe(location, f".check-{uuid.uuid4().hex[:8]}", filesystem.get_file_info(root).type.name == "NotFound")
    try:
        yield probe
    finally:
        place.ask(clear, probe)


def _run(place: Place, probe: Probe, seen: Mapping[str, Seen]) -> Finding:
    """Check that every node reads what every other one wrote into the run directory."""
    name = hide_secrets(probe.run_dir)
    faults = {node: this.run_fault for node, this in seen.items() if this.run_fault is not None}
    if faults:
        told = "; ".join(dict.fromkeys(faults.values()) if len(faults) == len(seen) else map(": ".join, faults.items()))
        return Finding("run directory", told, "give a folder or bucket that every node may write to")
    answers = place.ask(unseen, probe, [node.id for node in place.nodes] or [HERE])
    blind = [node for node, missing in answers.items() if missing]
    if blind:
        return Finding(
            "run directory",
            f"{name}: {', '.join(blind)} cannot read what other nodes wrote there",
            "give a URI such as s3://bucket/runs/first, or a path on a mount that all nodes share",
        )
    return Finding("run directory", f"{name}: written, read and deleted by {len(seen)} node(s)")


# -- network -----------------------------------------------------------------------------------------------------------


def _all_reduce(place: Place, progress: Progress) -> Finding:
    """Let the workers of a training sum a tensor."""
    from raynas.phases.check_workers import MIB, all_reduce  # local: it imports Ray Train

    what, workers = "all-reduce", place.resources.most_workers
    try:
        accounts = all_reduce(place.resources, reporter(progress))
    except UserError as error:
        addresses = sorted({node.name.partition(" ")[0] for node in place.nodes})
        return Finding(
            what,
            f"{workers} worker(s) did not sum a tensor: {error}",
            f"let the nodes ({', '.join(addresses)}) reach one another on every TCP port (security group, firewall): "
            "the workers meet at a free port of the first one, and send at others; with several networks name the "
            "interface: GLOO_SOCKET_IFNAME, for GPUs NCCL_SOCKET_IFNAME",
        )
    ways = sorted({f"{account['interface'] or 'an interface'} of {account['node']}" for account in accounts})
    ports = {account["port"] for account in accounts} - {None}
    met = f"met at port {' '.join(ports)}" if ports else "met through a file, as on one machine"
    slowest = max(account["seconds"] for account in accounts)
    backend = accounts[0]["backend"]
    return Finding(
        what, f"{workers} worker(s) by {backend} over {', '.join(ways)}: {MIB} MiB right in {slowest:.2g} s; {met}"
    )


def _dashboard() -> Finding:
    """Ask the dashboard for its mode of authentication, which it tells without a token."""
    from ray._private import worker

    what, address = "dashboard", getattr(worker._global_node, "webui_url", None)
    if not address:
        return Finding(
            what, "there is none, and so no jobs", "start the head with --include-dashboard=true and 'raynas[jobs]'"
        )
    url = f"http://{address.removeprefix('http://')}"
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(f"{url}/api/authentication_mode", timeout=DASHBOARD_S) as answer:
            token = json.load(answer)["authentication_mode"] == "token"
    except urllib.error.HTTPError as error:
        return Finding(what, f"{url} answers with {error.code}, so it does not say whether it wants a token")
    except (OSError, ValueError, KeyError) as error:
        return Finding(what, f"{url}: {reason(error)}", "look at dashboard.log in the head's session folder")
    if token:
        return Finding(what, f"{url} answers, and wants the token")
    if on_loopback() or "127.0.0.1" in url or "localhost" in url:
        return Finding(what, f"{url} answers, and wants no token: every user of the head may start jobs")
    return Finding(
        what,
        f"{url} answers, and wants no token: whoever reaches it may run anything",
        "start the cluster with RAY_AUTH_MODE=token, or the head with --dashboard-host=127.0.0.1",
    )


def show(findings: Sequence[Finding], progress: Progress) -> None:
    """Write a table of the findings, each failed one with its mend."""
    rows = []
    for finding in findings:
        rows.append(("ok" if finding.mend is None else "FAILED", finding.what, finding.found))
        if finding.mend is not None:
            rows.append(("", "", f"mend: {finding.mend}"))
    for line in columns(rows):
        progress(line)
