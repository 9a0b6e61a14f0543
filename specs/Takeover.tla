---- MODULE Takeover ----
\* Two committers of a plain sink, each may stall; segments side by side; failed sends, a lost task, lost answers.
EXTENDS WalSink
MCServes == [r \in 1..2 |-> {"a"}]
MCKind == [s \in {"a"} |-> "plain"]
MCShape == <<<<2, 1>>>>
====
