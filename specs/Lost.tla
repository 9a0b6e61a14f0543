---- MODULE Lost ----
\* A delivery task that was given up and goes on, while its committer collects.
EXTENDS WalSink
MCServes == <<{"a"}>>
MCKind == [s \in {"a"} |-> "plain"]
MCShape == <<<<2>>, <<>>>>
====
