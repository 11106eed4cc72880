"""Training and sampling on one GPU and on several: time, communication, memory, and what large data sets would take."""
