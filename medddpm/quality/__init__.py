"""How good a synthetic volume is: metrics, distances of sets, intervals, segmentation."""
