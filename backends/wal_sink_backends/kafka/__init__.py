"""`KafkaSink`: messages and position in one Kafka transaction.

`messages` turns rows into messages, `producer` runs the transactions of one slot, `ledger` reads and checks the ledger
topic, `client` connects, translates errors and warns of topics that lose acknowledged messages.
The ledger's records and the transactional ids must stay as they are: other versions read and fence by them.
"""

from wal_sink_backends.kafka.sink import KafkaSink

__all__ = ["KafkaSink"]
