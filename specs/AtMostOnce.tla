---- MODULE AtMostOnce ----
\* At-most-once delivery, taken over and collected.
EXTENDS WalSink
MCServes == [r \in 1..2 |-> {"a"}]
MCKind == [s \in {"a"} |-> "at_most_once"]
MCShape == <<<<2>>, <<>>>>
====
