"""`RedisSink`: rows and position in one script of Redis."""

from wal_sink_backends.redis.sink import RedisSink

__all__ = ["RedisSink"]
