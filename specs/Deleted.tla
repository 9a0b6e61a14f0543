---- MODULE Deleted ----
\* The checkpoint is deleted under a living run; another query with another WAL goes on in its place; the run starts its query again.
EXTENDS WalSink
MCServes == [r \in 1..2 |-> {"a"}]
MCKind == [s \in {"a"} |-> "plain"]
MCShape == <<<<1>>>>
====
