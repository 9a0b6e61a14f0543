"""The documentation site: the hooks with which MkDocs builds it, and the program that checks it in a browser.

`hooks` holds the events of MkDocs. `links` leads links to pages, or to the repository. `lists` indents lists as
Python-Markdown reads them. `check` opens every page (`python -m docs_site.check site`), with `browser` and `server`.
"""
