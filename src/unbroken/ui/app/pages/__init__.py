"""The pages, one module a subject: each returns a router for the site that it is given."""
