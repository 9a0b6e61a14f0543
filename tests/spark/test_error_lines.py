"""One telling line out of a page: the texts are PySpark's own, shortened in the middle."""

from __future__ import annotations

import re
import traceback

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PythonException

from tests.house.spark import SparkJobError, surfaced_errors
from wal_sink.errors import ConfigError, StoreError
from wal_sink.spark.tasks import telling_line
from wal_sink.support.clock import JobStoppedError

OF_PYTHON = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/spark/pyspark.zip/pyspark/worker.py", line 4207, in invoke_udf
    func, profiler, deserializer, serializer = read_udfs(
                                               ^^^^^^^^^^
ImportError: No module named 'orders'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/opt/app/orders.py", line 17, in post
    raise ZeroDivisionError("the user's own")
ZeroDivisionError: the user's own
with a second line
"""
UNREADABLE = 'java.lang.NumberFormatException: For input string: "x"'
ABORTED = "Job aborted due to stage failure: Task 1 in stage 5.0 failed 1 times"
OF_JAVA = f"""An error occurred while calling o148.collectToPython.
: org.apache.spark.SparkException: {ABORTED}
\tat java.base/java.lang.reflect.Method.invoke(Method.java:569)
\tat java.base/java.lang.Thread.run(Thread.java:840)
Caused by: java.lang.reflect.InvocationTargetException
\tat java.base/java.lang.reflect.Method.invoke(Method.java:569)
\t... 1 more
Caused by: {UNREADABLE}.
\tat java.base/java.lang.Integer.parseInt(Integer.java:668)
\t... 28 more
Caused by: java.io.EOFException
\t... 22 more
"""
OF_PYTHON_IN_JAVA = OF_JAVA.replace("\tat", OF_PYTHON + "\n\tat", 1)
CANCELLED_JOB = "[SPARK_JOB_CANCELLED] Job 7 cancelled part of cancelled job group g"
CANCELLED = f"""An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.
: org.apache.spark.SparkException: {CANCELLED_JOB}
\tat org.apache.spark.errors.SparkCoreErrors$.sparkJobCancelled(SparkCoreErrors.scala:222)
"""
OF_JDBC = """An error occurred while calling o1.save.
: java.sql.SQLException: jdbc:postgresql://me:hush@host/db?password=hush refused
\tat org.postgresql.Driver.connect(Driver.java:1)
"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (OF_PYTHON, "ZeroDivisionError: the user's own"),
        (OF_PYTHON_IN_JAVA, "ZeroDivisionError: the user's own"),
        (
            OF_JAVA,
            f"org.apache.spark.SparkException: {ABORTED}; caused by {UNREADABLE}",
        ),
        (CANCELLED, f"org.apache.spark.SparkException: {CANCELLED_JOB}"),
        (OF_JDBC, "java.sql.SQLException: jdbc:postgresql://host/db refused"),
        ("[DIVIDE_BY_ZERO] Division by zero.\n== SQL (line 1) ==\nselect 1/0", "[DIVIDE_BY_ZERO] Division by zero"),
        ("Connection refused", "Connection refused"),
        ("", "nothing"),
        ("x" * 9999, "x" * 300),
    ],
)
def test_the_line_that_tells(text: str, line: str) -> None:
    assert telling_line(text) == line


class OfJava(Py4JJavaError):  # type: ignore[misc]
    """Its text comes from the JVM, where there is one."""

    def __init__(self, text: str | None) -> None:
        self.text = text

    def __str__(self) -> str:
        if self.text is None:
            raise ConnectionError("the JVM is gone")
        return self.text


class OfPython(PythonException):
    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        return self.text


def test_errors_tell_by_their_text_or_by_what_they_are() -> None:
    assert telling_line(OSError("broken pipe")) == "broken pipe"
    assert telling_line(OSError()) == "OSError"
    assert telling_line(OfJava(CANCELLED)).startswith("org.apache.spark.SparkException: [SPARK_JOB_CANCELLED]")
    assert telling_line(OfJava(None)) == "<a OfJava without text: str() raised ConnectionError>"


def surfaced(error: Exception, not_null: str = "") -> Exception:
    with pytest.raises(Exception) as caught, surfaced_errors("batch 7", not_null):  # noqa: PT011 - each test looks closer
        raise error
    assert "java" not in "".join(traceback.format_exception(caught.value)).replace("java.lang.NumberFormat", "")
    return caught.value


def test_a_page_of_java_becomes_a_short_error_of_its_own() -> None:
    error = surfaced(OfJava(OF_JAVA))
    assert type(error) is SparkJobError
    assert str(error).startswith("batch 7: org.apache.spark.SparkException: Job aborted")


@pytest.mark.parametrize("why", ["java.lang.InterruptedException", CANCELLED_JOB])
def test_a_stop_is_told_in_the_words_that_spark_looks_for_and_without_the_page(why: str) -> None:
    error = OfJava(OF_JAVA.replace(ABORTED, why))
    with pytest.raises(JobStoppedError) as caught, surfaced_errors("batch 7", in_stream=True):
        raise error

    # Spark's own pattern, `StreamExecution.PROXY_ERROR`.
    seen_by_spark = f"wal_sink.support.clock.JobStoppedError: {caught.value}"
    assert re.search(r"py4j.protocol.Py4JJavaError: An error occurred while calling(.|\n)*Interrupt", seen_by_spark)
    assert len(seen_by_spark) < 700
    assert "\tat " not in "".join(traceback.format_exception(caught.value))


def test_a_job_that_is_cancelled_outside_of_the_stream_is_one_that_failed() -> None:
    assert type(surfaced(OfJava(OF_JAVA.replace(ABORTED, CANCELLED_JOB)))) is SparkJobError


def test_an_error_of_a_task_comes_without_the_page_it_travelled_in() -> None:
    task_error = 'TaskError: wal-sink error in a task: ["StoreError","the disk is full"]'
    error = surfaced(OfJava(OF_JAVA.replace("\tat", f"{task_error}\n\tat", 1)))
    assert (type(error), str(error)) == (StoreError, "batch 7: the disk is full")


def test_a_null_where_none_may_be_comes_without_the_page() -> None:
    page = CANCELLED.replace("[SPARK", "java.lang.NullPointerException: a\n\tat x.PythonArrowInput\n[SPARK")
    with pytest.raises(ConfigError, match="including nested ones: name") as caught, surfaced_errors("batch 7", "name"):
        raise OfJava(page)
    assert "sparkJobCancelled" not in "".join(traceback.format_exception(caught.value))


def test_what_python_raised_in_the_dataframe_stays_what_it_is() -> None:
    error = OfPython(OF_PYTHON)
    assert surfaced(error) is error
