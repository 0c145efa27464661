"""An all-reduce between Ray Train workers, set up as for a training."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import tempfile
import time
from typing import Any

import ray
from ray.exceptions import RayActorError
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchConfig
from ray.train.v2.api.exceptions import TrainingFailedError

from raynas.cluster.connection import on_loopback
from raynas.cluster.mailbox import open_mailbox
from raynas.cluster.resources import Resources
from raynas.cluster.trainer import trainer
from raynas.errors import UserError
from raynas.progress.reporter import Reporter
from raynas.text import one_line
from raynas.training.rendezvous import FileRendezvous

NAME = "check"
MIB = 16  # of the tensor that is summed
MEETING_S = 60  # for the workers to find each other
LIMIT_S = 180.0  # for all of it, with the start of the workers' processes
_SIOCGIFADDR = 0x8915  # Linux's request for the address of an interface


def all_reduce(resources: Resources, progress: Reporter) -> list[dict[str, Any]]:
    """Sum a tensor over Ray Train workers, and return each one's account.

    Returns:
        `node` (address), `interface`, `backend`, `device`, `port` of the meeting (None for a file), and `seconds`.

    Raises:
        UserError: the workers do not start or do not reach each other; the message is the reason alone.
    """
    os.environ.setdefault("RAY_CHDIR_TO_TRIAL_DIR", "0")
    controllers: list[Any] = []
    began = time.monotonic()

    def watch() -> None:
        if controllers and time.monotonic() - began > LIMIT_S:
            ray.wait([controllers.pop().abort.remote()], timeout=10)

    mailbox = open_mailbox()
    with tempfile.TemporaryDirectory() as folder:
        training = trainer()(
            _work,
            train_loop_config={"mailbox": mailbox},
            torch_config=FileRendezvous(timeout_s=MEETING_S, folder=folder)
            if on_loopback()
            else TorchConfig(timeout_s=MEETING_S),
            scaling_config=ScalingConfig(
                num_workers=resources.most_workers, use_gpu=resources.gpus > 0, resources_per_worker=resources.of(1)
            ),
            run_config=RunConfig(name=NAME, storage_path=folder),
        )
        training._register_sigint_handler = controllers.append  # type: ignore[attr-defined]  # not Ray's handler of Ctrl-C
        try:
            with progress.polling(watch):
                training.fit()
            events, _ = ray.get(mailbox.take.remote(), timeout=LIMIT_S)
        except RayActorError as error:
            raise UserError(f"no answer within {time.monotonic() - began:.0f} s") from error
        except TrainingFailedError as error:
            causes = [str(cause) for cause in (getattr(error, "worker_failures", None) or {}).values()]
            text = next((cause for cause in causes if cause.strip()), str(error)).strip().splitlines()[-1]
            raise UserError(one_line(text, 300)) from error
        except BaseException:
            if controllers:
                ray.wait([controllers.pop().abort.remote()], timeout=10)
            raise
        finally:
            ray.kill(mailbox)
    return [account for _, account in events]


def _work(config: dict[str, Any]) -> None:
    """Sum a tensor, as one worker, and send an account of it to the `mailbox`."""
    import ray.train.torch
    import torch
    import torch.distributed as dist

    from raynas.training.context import DistributedContext, check_connection

    context = DistributedContext(device=ray.train.torch.get_device())
    check_connection(context)
    tensor = torch.full((MIB * 2**18,), float(context.rank), device=context.device)
    began = time.monotonic()
    context.all_reduce(tensor)
    right = context.world_size * (context.world_size - 1) / 2
    if not bool((tensor == right).all()):
        raise UserError(f"the sum of {MIB} MiB over the workers is wrong on {socket.gethostname()}")
    seconds = time.monotonic() - began  # after the comparison, which a GPU has to be done for
    address = ray.util.get_node_ip_address()
    account = {
        "node": address,
        "interface": interface_of(address, dist.get_backend()),
        "backend": dist.get_backend(),
        "device": str(context.device),
        "port": os.environ.get("MASTER_PORT"),
        "seconds": seconds,
    }
    ray.get(config["mailbox"].put.remote(NAME, account))


def interface_of(address: str, backend: str) -> str | None:
    """Return the network interface that a backend is told to use, else the one with this machine's address."""
    told = os.environ.get(f"{backend.upper()}_SOCKET_IFNAME")
    if told:
        return told
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(asking, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:  # an interface without an address
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return None
