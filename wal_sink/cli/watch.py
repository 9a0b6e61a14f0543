"""A view that is shown again and again until Ctrl-C: in place on a terminal, else one snapshot below the other."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text

from wal_sink.cli.output import console
from wal_sink.cli.tables import print_text
from wal_sink.errors import StoreError
from wal_sink.reporting.texts import told

Show = Callable[[Console], None]


def watch(show: Show, *, every_s: float, as_json: bool) -> None:
    """Call `show` every so many seconds until Ctrl-C, the normal end. A store that fails for a while ends nothing."""
    click.get_current_context().find_root().params["quiet"] = True  # reports of long work would break the view
    try:
        if as_json or not sys.stdout.isatty():
            _below_each_other(show, every_s, as_json=as_json)
        else:
            _in_place(show, every_s)
    except KeyboardInterrupt:
        return


def _below_each_other(show: Show, every_s: float, *, as_json: bool) -> None:
    while True:
        if not as_json:
            click.echo(f"--- {_now()}")
        _shown(show, console(sys.stderr) if as_json else console(), show_on=console())
        sys.stdout.flush()
        time.sleep(every_s)


def _in_place(show: Show, every_s: float) -> None:
    out = console()
    with Live(console=out, auto_refresh=False, screen=True) as live:
        while True:
            with out.capture() as captured:
                _shown(show, out, show_on=out)
            head = Text(f"{_now()}, every {every_s:g} s, Ctrl-C ends\n\n", "dim")
            live.update(head + Text.from_ansi(captured.get()), refresh=True)
            time.sleep(every_s)


def _shown(show: Show, out_of_errors: Console, *, show_on: Console) -> None:
    try:
        show(show_on)
    except StoreError as error:
        print_text(f"the store gave no answer: {told(error)}", out_of_errors)


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%SZ")
