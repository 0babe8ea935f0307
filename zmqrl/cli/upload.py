"""`upload`: the metrics of runs to Weights & Biases or MLflow."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from socket import socket
from typing import TYPE_CHECKING

import click

from zmqrl.errors import FolderOfRuns

if TYPE_CHECKING:
    from zmqrl.metrics.upload import Upload

POLL_S = 1.0


@click.command("upload")
@click.argument("service", type=click.Choice(["wandb", "mlflow"]), metavar="wandb|mlflow")
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@click.option("-f", "--follow", is_flag=True, help="Continue until the runs have ended.")
@click.option("--project", default="zmqrl", show_default=True, help="Project of W&B, or experiment of MLflow.")
@click.option(
    "--to",
    "place",
    metavar="PLACE",
    help="wandb: folder for offline directories; default: the service. mlflow: URI of the tracking store or server; "
    "default: $MLFLOW_TRACKING_URI, else sqlite:///mlflow.db.",
)
@click.option(
    "--retry",
    "retry_s",
    type=click.FloatRange(0),
    default=600.0,
    show_default=True,
    metavar="SECONDS",
    help="Try a service that fails again for so long.",
)
def upload_command(
    service: str, runs: tuple[str, ...], follow: bool, project: str, place: str | None, retry_s: float
) -> None:
    """Send the rows of metrics.jsonl to W&B or MLflow.

    RUN is a run directory, a run id, or a folder of runs, as that of `train --seeds`. The command is a process of its
    own: it reads the files of the runs, and training does not depend on it. Executed again, it continues after the last
    row that the service has.
    """
    uploads = [_upload(service, run, project, place, retry_s) for run in dict.fromkeys(_each(runs))]
    open_ones = [upload for upload, _ in uploads]
    try:
        while open_ones:
            for upload in [*open_ones]:
                has_ended, exit_code = _end(upload.run.directory)
                upload.step()
                if not upload.is_waiting and (has_ended or not follow):
                    open_ones.remove(upload)
                    upload.destination.close(exit_code)
                    click.echo(f"{upload.run.directory}: {upload.sent} new rows in {service}, {upload.run.id}")
            if open_ones:
                time.sleep(POLL_S)  # the pace of metrics.jsonl
    finally:
        for upload in open_ones:
            upload.destination.close(None)


def _each(runs: Sequence[str]) -> Iterator[str]:
    """Runs of which each folder of runs is replaced by the runs in it."""
    from zmqrl.run_files.run_info import read_info
    from zmqrl.run_files.stored_config import refuse_folder_of_runs

    for run in runs:
        try:
            if read_info(Path(run)) is None:
                refuse_folder_of_runs(Path(run))
            yield run
        except FolderOfRuns as folder:
            yield from folder.runs


def _upload(service: str, run: str, project: str, place: str | None, retry_s: float) -> tuple[Upload, socket]:
    from zmqrl.cli.run.find_run import find_run
    from zmqrl.config.codec import to_json
    from zmqrl.config.webhook import without_secrets
    from zmqrl.metrics.upload import Upload, UploadedRun, reserve
    from zmqrl.metrics.upload_mlflow import MlflowRun
    from zmqrl.metrics.upload_wandb import WandbRun
    from zmqrl.run_files.stored_config import read_config

    directory, info = find_run(run)
    config = to_json(without_secrets(read_config(directory)))
    uploaded = UploadedRun(info.lineage or info.run_id, directory, project, config)
    folder = None if place is None else Path(place)
    target = MlflowRun(uploaded, place) if service == "mlflow" else WandbRun(uploaded, folder)
    upload = Upload(uploaded, target, retry_s, lambda text: click.echo(text, err=True))
    return upload, reserve(service, uploaded, place)


def _end(directory: Path) -> tuple[bool, int | None]:
    """Whether a run has ended, and its exit code."""
    from zmqrl.run_files.records import read_summary
    from zmqrl.run_files.run_info import is_live, read_info

    info = read_info(directory)
    if info is None or is_live(directory, info):
        return False, None
    return True, int((read_summary(directory, info.run_id) or {}).get("exit_code", 1))
