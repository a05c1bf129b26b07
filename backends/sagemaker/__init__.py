"""SageMaker real-time endpoints: model, endpoint configuration, endpoint, and the role between."""
