"""A libnvidia-ml.so.1 built from C, told by a text file what GPUs there are; see libnvml.c."""
