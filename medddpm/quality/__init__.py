"""Measures the quality of synthetic volumes: metrics, distances of sets, intervals, segmentation."""
