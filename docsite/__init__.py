"""What makes the documentation site out of docs/ and of the code: `scripts/docs` builds it.

`links` reads pages, `hooks` is what mkdocs calls, `generated` lists the pages that the code writes. Nothing here is
part of the package.
"""
