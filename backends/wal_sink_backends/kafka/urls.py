"""`KafkaSink` by URL: an entry point of group `wal_sink.backends`."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit

from wal_sink.errors import ConfigError
from wal_sink.support.secrets import is_secret_name, mask_url
from wal_sink_backends.common.options import options_in, options_of
from wal_sink_backends.kafka.sink import KafkaSink

_OPTIONS = {
    **options_of(KafkaSink, "bootstrap_servers", "topic", "conf_from_env"),
    "conf.": [str],
    "env.": [str],
}


def kafka_sink(url: str) -> KafkaSink:
    """`kafka://host:9092,host2:9092/topic?key=id&value=json`: the arguments of `KafkaSink` as options.

    `conf.NAME=value` sets a property of librdkafka. `env.NAME=VARIABLE` takes it from the environment; secrets have to
    come from there.
    """
    if re.search(r"\s", url):  # before any part of it is shown: masking a password ends at a blank
        raise ConfigError("kafka://…: the URL has blanks or line breaks; write a blank as %20")
    parts = urlsplit(url)
    if parts.fragment:
        raise ConfigError(f"{parts.scheme}://…: the URL has a '#'; write it as %23")
    servers, topic = parts.netloc, parts.path.strip("/")
    values = options_in(parts.query, url, _OPTIONS)
    conf, from_env = _family(values, "conf."), _family(values, "env.")
    secret = next(filter(is_secret_name, conf), "sasl.password" if "@" in servers + topic else None)
    if secret is not None:
        raise ConfigError(
            f"{mask_url(url)}: expected no secrets in the URL. Write ?env.{secret}=VARIABLE: the sink reads this "
            "environment variable where it runs"
        )
    if not servers or not topic:
        raise ConfigError(f"{mask_url(url)}: expected kafka://host:9092,host2:9092/topic?key=COLUMN")
    return KafkaSink(servers, topic, conf=conf, conf_from_env=from_env, **values)


def _family(values: dict[str, Any], prefix: str) -> dict[str, str]:
    return {name.removeprefix(prefix): values.pop(name) for name in [*values] if name.startswith(prefix)}
