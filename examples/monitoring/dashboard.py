# python examples/monitoring/dashboard.py > examples/monitoring/dashboard.json
"""Makes the Grafana dashboard of wal-sink's metrics with grafana-foundation-sdk. Import the JSON file into Grafana.

A test runs the query of every panel against a real Prometheus. No Grafana has rendered it there.
"""

from __future__ import annotations

from dataclasses import dataclass

from grafana_foundation_sdk.builders import common, timeseries
from grafana_foundation_sdk.builders.dashboard import Dashboard, DatasourceVariable, QueryVariable, Row
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import LegendDisplayMode, LegendPlacement
from grafana_foundation_sdk.models.dashboard import DataSourceRef, VariableRefresh, VariableSort

SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
WAL = 'wal=~"$wal"'
SINK = 'wal=~"$wal", sink=~"$sink"'
RATE = "$__rate_interval"
HALF, HEIGHT = 12, 8


@dataclass(frozen=True)
class Panel:
    """A panel of one query, with the sentence that tells what to read from it."""

    title: str
    text: str
    query: str
    legend: str
    unit: str = "short"


def quantile(share: float, metric: str, chosen: str, by: str) -> str:
    """The query for a quantile of a histogram."""
    return f"histogram_quantile({share}, sum by ({by}, le) (rate({metric}_bucket{{{chosen}}}[{RATE}])))"


ROWS = {
    "Backlog": [
        Panel(
            "Lag",
            "Age of the oldest batch that the sink does not have. It falls back to 0 after each delivery.",
            f"wal_sink_lag_seconds{{{SINK}}}",
            "{{sink}}",
            "s",
        ),
        Panel(
            "Pending batches",
            "Batches in the WAL that the sink does not have.",
            f"wal_sink_pending_batches{{{SINK}}}",
            "{{sink}}",
        ),
        Panel(
            "Stream waits (1) for room in the backlog",
            "1: the query reads nothing new, because max_pending_batches is reached.",
            f"wal_sink_stream_waiting{{{WAL}}}",
            "{{wal}}",
        ),
        Panel(
            "Gave up (1)",
            "1: the delivery ended with an error, and nothing is sent until the query or drain starts again.",
            f"wal_sink_gave_up{{{SINK}}}",
            "{{sink}}",
        ),
    ],
    "Errors": [
        Panel(
            "Retries",
            "Failed attempts that another attempt follows, a minute, by kind of failure.",
            f"sum by (sink, kind) (rate(wal_sink_retries_total{{{SINK}}}[{RATE}])) * 60",
            "{{sink}}: {{kind}}",
        ),
        Panel(
            "Time since the last failure",
            "By kind. The text of the error is in the log of the process.",
            f"time() - wal_sink_last_error_timestamp_seconds{{{SINK}}}",
            "{{sink}}: {{kind}}",
            "s",
        ),
        Panel(
            "Dead letters",
            "Rows kept beside the WAL, a minute.",
            f"sum by (sink, reason) (rate(wal_sink_dead_letter_rows_total{{{SINK}}}[{RATE}])) * 60",
            "{{sink}}: {{reason}}",
        ),
        Panel(
            "Requests to the store by answer",
            "missing and exists are ordinary answers of the protocol; error is none.",
            f"sum by (answer) (rate(wal_sink_store_request_seconds_count{{{WAL}}}[{RATE}]))",
            "{{answer}}",
            "reqps",
        ),
    ],
    "Throughput": [
        Panel(
            "Rows staged",
            "Rows a second that the query writes into the WAL.",
            f"sum by (wal) (rate(wal_sink_staged_rows_total{{{WAL}}}[{RATE}]))",
            "{{wal}}",
            "rowsps",
        ),
        Panel(
            "Rows sent",
            "Rows a second that arrive at the sink.",
            f"sum by (sink) (rate(wal_sink_sent_rows_total{{{SINK}}}[{RATE}]))",
            "{{sink}}",
            "rowsps",
        ),
        Panel(
            "Batches delivered",
            "Batches a minute.",
            f"sum by (sink) (rate(wal_sink_delivered_batches_total{{{SINK}}}[{RATE}])) * 60",
            "{{sink}}",
        ),
        Panel(
            "Newest batch that the sink has",
            "Grows with every marker.",
            f"wal_sink_delivered_through{{{SINK}}}",
            "{{sink}}",
        ),
    ],
    "Times": [
        Panel(
            "From manifest to marker, 95th percentile",
            "How long a batch waits until it is delivered, waiting for Spark's commit included.",
            quantile(0.95, "wal_sink_delay_seconds", SINK, "sink"),
            "{{sink}}",
            "s",
        ),
        Panel(
            "Staging, 95th percentile",
            "Spark's job and the manifest.",
            quantile(0.95, "wal_sink_staging_seconds", WAL, "wal"),
            "{{wal}}",
            "s",
        ),
        Panel(
            "Chunks, 95th percentile",
            "One call of the sink.",
            quantile(0.95, "wal_sink_chunk_seconds", SINK, "sink"),
            "{{sink}}",
            "s",
        ),
        Panel(
            "Requests to the store, 95th percentile",
            "By operation, from the driver and from tasks.",
            quantile(0.95, "wal_sink_store_request_seconds", WAL, "operation"),
            "{{operation}}",
            "s",
        ),
    ],
}


def panel(given: Panel) -> timeseries.Panel:
    legend = common.VizLegendOptions().display_mode(LegendDisplayMode.LIST).placement(LegendPlacement.BOTTOM)
    query = Dataquery().expr(given.query).legend_format(given.legend).ref_id("A").range()
    made = timeseries.Panel().title(given.title).description(given.text).unit(given.unit).datasource(SOURCE)
    legend = legend.show_legend(True)  # noqa: FBT003 - the builders take no names
    return made.with_target(query).legend(legend).min(0).span(HALF).height(HEIGHT)


def variable(name: str, label: str, query: str) -> QueryVariable:
    made = QueryVariable(name).label(label).query(query).datasource(SOURCE)
    made = made.multi(True).include_all(True)  # noqa: FBT003
    return made.all_value(".*").refresh(VariableRefresh.ON_TIME_RANGE_CHANGED).sort(VariableSort.ALPHABETICAL_ASC)


def dashboard() -> Dashboard:
    made = Dashboard("wal-sink").uid("wal-sink").tags(["wal-sink", "spark"]).refresh("30s").time("now-3h", "now")
    made = made.with_variable(DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
    made = made.with_variable(variable("wal", "WAL", "label_values(wal_sink_delivered_through, wal)"))
    made = made.with_variable(variable("sink", "Sink", 'label_values(wal_sink_delivered_through{wal=~"$wal"}, sink)'))
    for title, panels in ROWS.items():
        made = made.with_row(Row(title))
        for given in panels:
            made = made.with_panel(panel(given))
    return made


if __name__ == "__main__":
    print(JSONEncoder(sort_keys=True, indent=2).encode(dashboard().build()))
