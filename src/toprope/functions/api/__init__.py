"""Names of the yr API, by subject; `toprope.functions.exports` lists them all."""
