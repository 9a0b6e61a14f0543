"""Rows as DynamoDB items: `DynamoDbSink`, in one transaction with the position, and `DynamoDbPutSink`, by repeatable
puts.

`items` encodes rows, and reads the keys of a table and the ledger's items; `calls` sends requests, and only it knows
boto3. The ledger's items must stay as they are: other versions read them.
"""

from wal_sink_backends.dynamodb.sink import DynamoDbPutSink, DynamoDbSink

__all__ = ["DynamoDbPutSink", "DynamoDbSink"]
