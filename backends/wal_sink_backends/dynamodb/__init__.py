"""`DynamoDbSink` and `DynamoDbPutSink`: rows as items, with the position in one transaction or by repeatable puts."""

from wal_sink_backends.dynamodb.sink import DynamoDbPutSink, DynamoDbSink

__all__ = ["DynamoDbPutSink", "DynamoDbSink"]
