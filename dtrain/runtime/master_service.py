"""The two calls of TensorFlow's master service that dtrain makes, as gRPC knows them.

Every `tf.distribute.Server` answers it: a client sends a graph, and has it run. The
messages are those of tensorflow/core/protobuf/master.proto, with the fields that are
needed here; the installed package has no classes for them. TensorFlow's own client,
`tf.compat.v1.Session`, shares its connections with training's and can wait for ever.
"""

from collections.abc import Callable

import grpc
import tensorflow as tf
from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory
from tensorflow.core.protobuf import named_tensor_pb2

_SERVICE = "/tensorflow.MasterService"
_PACKAGE = "dtrain.master"

_Field = descriptor_pb2.FieldDescriptorProto
_ONE, _MANY = _Field.LABEL_OPTIONAL, _Field.LABEL_REPEATED
_TENSOR = named_tensor_pb2.NamedTensorProto.DESCRIPTOR

# By message: name, number, type and label of each field.
_MESSAGES = {
    "CreateSessionRequest": (
        ("graph_def", 1, _Field.TYPE_BYTES, _ONE),  # a message, already serialised
        ("config", 2, _Field.TYPE_BYTES, _ONE),
    ),
    "CreateSessionResponse": (("session_handle", 1, _Field.TYPE_STRING, _ONE),),
    "RunStepRequest": (
        ("session_handle", 1, _Field.TYPE_STRING, _ONE),
        ("feed", 2, _Field.TYPE_MESSAGE, _MANY),
        ("fetch", 3, _Field.TYPE_STRING, _MANY),
    ),
    "RunStepResponse": (("tensor", 1, _Field.TYPE_MESSAGE, _MANY),),
}


def _make_classes() -> dict[str, type[message.Message]]:
    file = descriptor_pb2.FileDescriptorProto(
        name="dtrain/master.proto",
        package=_PACKAGE,
        syntax="proto3",
        dependency=[_TENSOR.file.name],
    )
    for name, fields in _MESSAGES.items():
        kind = file.message_type.add(name=name)
        for field, number, type_, label in fields:
            type_name = f".{_TENSOR.full_name}" * (type_ == _Field.TYPE_MESSAGE)
            kind.field.add(
                name=field,
                number=number,
                type=type_,
                label=label,
                type_name=type_name or None,
            )
    pool = descriptor_pool.Default()
    pool.AddSerializedFile(file.SerializeToString())
    return {
        name: message_factory.GetMessageClass(
            pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")
        )
        for name in _MESSAGES
    }


_CLASSES = _make_classes()


class Master:
    """A session on one server, over a connection of its own.

    Args:
        address: of the server.
        graph: to run there, on that server alone.
        seconds: to wait for an answer, each time.

    Raises:
        grpc.RpcError: there was none, or it was a failure.
    """

    def __init__(self, address: str, graph: tf.Graph, seconds: float):
        self._channel = grpc.insecure_channel(
            address,
            options=[
                ("grpc.use_local_subchannel_pool", 1),
                ("grpc.enable_http_proxy", 0),  # see `environment.py`
            ],
        )
        config = tf.compat.v1.ConfigProto(
            # With no other task's devices, the server asks no other task.
            device_filters=["/job:none"],
            isolate_session_state=True,
        )
        try:
            answer = self._method("CreateSession")(
                _CLASSES["CreateSessionRequest"](
                    graph_def=graph.as_graph_def().SerializeToString(),
                    config=config.SerializeToString(),
                ),
                timeout=seconds,
            )
        except grpc.RpcError:
            self.close()
            raise
        self._handle = answer.session_handle

    def run(self, fetch: str, feed: dict[str, str], seconds: float) -> bytes:
        """Returns the value of a uint8 vector, as bytes.

        Args:
            fetch: the tensor's name.
            feed: values of string scalars, by name.
            seconds: to wait for it.
        """
        request = _CLASSES["RunStepRequest"](session_handle=self._handle, fetch=[fetch])
        for name, value in feed.items():
            request.feed.add(name=name, tensor=tf.make_tensor_proto(value))
        answer = self._method("RunStep")(request, timeout=seconds)
        return tf.make_ndarray(answer.tensor[0].tensor).tobytes()

    def close(self) -> None:
        """Ends the connection at once, whatever the server does."""
        self._channel.close()

    def _method(self, name: str) -> Callable:
        return self._channel.unary_unary(
            f"{_SERVICE}/{name}",
            request_serializer=_CLASSES[f"{name}Request"].SerializeToString,
            response_deserializer=_CLASSES[f"{name}Response"].FromString,
        )
