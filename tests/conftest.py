"""Fixtures of all tests. `tests.components.require` decides between skipping and failing for a missing component."""

pytest_plugins = [
    "tests.fixtures_dynamodb",
    "tests.fixtures_http",
    "tests.fixtures_kafka",
    "tests.fixtures_redis",
    "tests.fixtures_s3",
    "tests.fixtures_spark",
    "tests.fixtures_sql",
]
