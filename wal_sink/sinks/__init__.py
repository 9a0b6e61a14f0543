"""What a target implements: `Sink` and its kinds, chunks, positions, guarantees. Also how a sink is called.

The ready sinks are not here but in `wal_sink_backends`; `urls` finds them by the scheme of a URL.

The names below are the tools that the ready sinks share, for authors of a backend: rows as plain values and as JSON,
secrets kept out of texts, loggers, calls and names that are spelled wrongly. A sink for one program needs none of them,
so they are not in `wal_sink`, which holds the classes that a sink implements and the errors that it raises.
"""

from wal_sink.arguments.values import did_you_mean, spelled_class
from wal_sink.redaction import Redactor, is_secret_name, mask_url, named_secrets, secrets_in_url
from wal_sink.reporting.logs import logger_of
from wal_sink.sinks.certificates import is_certificate_error
from wal_sink.sinks.json_rows import Maps, check_maps, decimal_texts, plain_values, to_json_lines

__all__ = [
    "Maps",
    "Redactor",
    "check_maps",
    "decimal_texts",
    "did_you_mean",
    "is_certificate_error",
    "is_secret_name",
    "logger_of",
    "mask_url",
    "named_secrets",
    "plain_values",
    "secrets_in_url",
    "spelled_class",
    "to_json_lines",
]
