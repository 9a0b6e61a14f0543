"""`RedisSink`: rows and position in one script of Redis.

`rows` turns rows into keys and values, and has the Lua script that puts them; `server` connects, translates errors and
warns of settings that lose acknowledged rows. The keys of the ledger and the meaning of the script's
arguments must stay as they are: older versions wrote them.
"""

from wal_sink_backends.redis.sink import RedisSink

__all__ = ["RedisSink"]
