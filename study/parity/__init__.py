"""Whether a setting costs quality: models trained in pairs, evaluated, compared."""
