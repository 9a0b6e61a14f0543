---- MODULE ForgetsMoment ----
\* Everything after one moment is lost; a newer process, a zombie, a send that comes late.
EXTENDS Forgets
MCShape == <<<<1, 1>>, <<2, 1>>>>
====
