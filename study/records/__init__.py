"""Records: tables with a schema and, beside each, how it was measured."""
