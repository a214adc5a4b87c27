"""A small convolutional network for 28 x 28 images of one channel."""

import keras


def cnn(outputs: int) -> keras.Model:
    """Returns two convolutions with batch norm, and a dense layer with dropout.

    It takes flat images, as an MLP does, so that one pipeline serves both.

    Args:
        outputs: logits.

    Returns:
        A model from float32 (batch, 784) to float32 (batch, outputs).
    """
    return keras.Sequential(
        [
            keras.Input((28 * 28,)),
            keras.layers.Reshape((28, 28, 1)),
            *_convolution(16),
            *_convolution(32),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(outputs),
        ],
        name="cnn",
    )


def _convolution(filters: int) -> list[keras.layers.Layer]:
    return [
        # Batch norm has a bias of its own.
        keras.layers.Conv2D(filters, 3, padding="same", use_bias=False),
        keras.layers.BatchNormalization(),
        keras.layers.ReLU(),
        keras.layers.MaxPooling2D(2),
    ]
