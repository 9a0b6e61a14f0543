---- MODULE Restart ----
\* One process whose query is started again after the checkpoint was restored under it; the other only delivers.
EXTENDS WalSink
MCServes == <<{"a"}, {"a"}>>
MCKind == [s \in {"a"} |-> "plain"]
MCShape == <<<<1>>>>
====
