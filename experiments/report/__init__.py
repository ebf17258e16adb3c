"""Tables, figures, claims and a page, made from result files alone. Nothing here trains or loads a model."""
