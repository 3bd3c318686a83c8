"""The intermediate representation: types, values, the op table, folds, text, verifier, interpreter."""
