"""The demo: it kills a real query again and again, and proves that nothing was lost or doubled.

`make demo` runs it, and so does `python -m examples.demo` in the checkout. It stands outside of the package as any user
does: it imports public names only, and looks at the log and the checkpoint as they lie on the store.
"""
