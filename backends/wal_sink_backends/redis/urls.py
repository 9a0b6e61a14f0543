"""`RedisSink` by URL: an entry point of group `wal_sink.backends`."""

from __future__ import annotations

from wal_sink.errors import ConfigError
from wal_sink.support.secrets import mask_url
from wal_sink_backends.common.options import options_in, options_of
from wal_sink_backends.redis.server import refuse_sentinel
from wal_sink_backends.redis.sink import RedisSink

_OPTIONS = options_of(RedisSink, "url")


def redis_sink(url: str) -> RedisSink:
    """A sink by URL: `redis://:password@host:6379/0?kind=hash&key=orders:{id}`, `rediss://…`, `redis+unix:///path?…`.

    Options are the arguments of `RedisSink` by their names; `key` is required.
    """
    refuse_sentinel(url)
    bare, _, query = url.removeprefix("redis+").partition("?")
    values = options_in(query, url, _OPTIONS)
    if "key" not in values:
        raise ConfigError(f"{mask_url(url)}: expected the key of each row. Add ?key=, for example ?key=orders:{{id}}")
    return RedisSink(bare, **values)
