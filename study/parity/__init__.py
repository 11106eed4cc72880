"""Tests whether a setting costs quality: trains models in pairs, evaluates and compares them."""
