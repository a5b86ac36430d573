"""What is special about each tracker of experiments: TensorBoard, W&B, MLflow."""
