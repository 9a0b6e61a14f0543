"""`KafkaSink`: messages and position in one Kafka transaction."""

from wal_sink_backends.kafka.sink import KafkaSink

__all__ = ["KafkaSink"]
