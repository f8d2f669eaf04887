"""Serving plans: the Open Inference Protocol over HTTP and gRPC. README.md of this folder."""
