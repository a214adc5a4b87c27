"""The data of the packaged experiments, as pipelines of TensorFlow ops.

Every pipeline here is made only of ops over files. Under parameter servers the
function that makes it is traced on the chief and runs on the workers, so that no
example is captured, and none passes through the chief. The file's name does travel:
every task finds the file under the same path on its own machine.
"""
