// How does the node of function.py look without Python in it, for products with a weight matrix?
//
// Results, errors and order are those of the Python way; only the time on the host differs. Items
// go to the WeightQueue all the same: B calls its `push`.

#include <ATen/ATen.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

Tensor* anchor = nullptr;                       // ANCHOR of function.py
torch::autograd::Node* anchor_node = nullptr;   // ANCHOR_NODE, kept alive by it
PyObject* refuse_double_backward = nullptr;     // raises, given the split

enum Kind : int64_t { kLinear, kMatmul, kMm, kAddmm };  // as in native.py

// What autograd must not see: the hooks of a Parameter would fire at B, with nothing.
struct Call : torch::CustomClassHolder {
  Kind kind;
  Tensor weight, bias;
  PyObject *split, *push;

  Call(Kind kind, Tensor weight, Tensor bias, PyObject* split, PyObject* push)
      : kind(kind), weight(std::move(weight)), bias(std::move(bias)), split(split), push(push) {
    Py_INCREF(split);
    Py_INCREF(push);
  }

  ~Call() override {
    if (Py_IsInitialized()) {
      pybind11::gil_scoped_acquire gil;
      Py_DECREF(split);
      Py_DECREF(push);
    }
  }
};

template <size_t size>
void call_python(PyObject* function, std::array<PyObject*, size> arguments) {
  PyObject* result = PyObject_Vectorcall(function, arguments.data(), size, nullptr);
  if (result == nullptr) {
    python_error error;
    error.persist();
    throw error;
  }
  Py_DECREF(result);
}

void push(const Call& call, const Tensor& x, const Tensor& dy) {
  pybind11::gil_scoped_acquire gil;
  const auto wrapped_x = pybind11::reinterpret_steal<pybind11::object>(THPVariable_Wrap(x));
  const auto wrapped_dy = pybind11::reinterpret_steal<pybind11::object>(THPVariable_Wrap(dy));
  call_python<3>(call.push, {call.split, wrapped_x.ptr(), wrapped_dy.ptr()});
}

// Whether this backward goes into the leaves, where autograd.grad() leaves .grad alone.
bool goes_into_the_leaves() {
  const auto* nodes = torch::autograd::get_current_graph_task_exec_info();
  if (nodes == nullptr || nodes->empty()) {
    return true;
  }
  const auto found = nodes->find(anchor_node);
  return found != nodes->end() && found->second.should_execute();
}

Tensor rows(const Tensor& x) {
  return x.dim() == 2 ? x : x.flatten(0, -2);
}

// The formula of `input_gradient` in ops/matmul.py, down to the order of operands.
Tensor input_gradient(const Tensor& x, const Tensor& right_t, const Tensor& dy) {
  const auto left = rows(x);
  if (left.stride(0) == 1 && left.stride(1) == left.size(0)) {
    return right_t.t().mm(rows(dy).t()).t().reshape(x.sizes());
  }
  const auto dx = rows(dy).mm(right_t);
  return x.dim() == 2 ? dx : at::_unsafe_view(dx, x.sizes());
}

Tensor product(const Tensor& x, const Call& call) {
  switch (call.kind) {
    case kLinear:
      return at::linear(x, call.weight, call.bias);
    case kMatmul:
      return at::matmul(x, call.weight);
    case kMm:
      return at::mm(x, call.weight);
    default:
      return at::addmm(call.bias, x, call.weight);
  }
}

struct Deferred : torch::autograd::Function<Deferred> {
  static Tensor forward(
      AutogradContext* context, const Tensor& x, const Tensor&, const c10::intrusive_ptr<Call>& call) {
    context->save_for_backward({x, x.requires_grad() ? call->weight.detach() : Tensor()});
    context->set_materialize_grads(false);
    const auto y = product(x, *call);
    call->weight = call->bias = Tensor();
    context->saved_data["call"] = c10::IValue::make_capsule(call);
    // A view made here would forbid in-place ops on the output; this has no view relation.
    return y.is_view() ? y.variable_data() : y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const Tensor& dy = gradients[0];
    if (!dy.defined()) {
      return variable_list(3);
    }
    const auto capsule = context->saved_data.at("call").toCapsule();
    const auto& call = static_cast<const Call&>(*capsule);
    if (at::GradMode::is_enabled()) {
      pybind11::gil_scoped_acquire gil;
      call_python<1>(refuse_double_backward, {call.split});
    }
    const auto saved = context->get_saved_variables();
    const Tensor &x = saved[0], &weight = saved[1];
    if (goes_into_the_leaves()) {
      push(call, x.detach(), dy);
    }
    if (!weight.defined()) {
      return variable_list(3);
    }
    return {input_gradient(x, call.kind == kLinear ? weight : weight.t(), dy), Tensor(), Tensor()};
  }
};

Tensor defer(
    int64_t kind, const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
    const pybind11::object& split, const pybind11::object& push) {
  return Deferred::apply(
      x, *anchor,
      c10::make_intrusive<Call>(
          static_cast<Kind>(kind), weight, bias.value_or(Tensor()), split.ptr(), push.ptr()));
}

// Share the anchor of function.py and what it does at a double backward.
void set_up(const Tensor& the_anchor, const pybind11::object& refuse) {
  anchor = new Tensor(the_anchor);
  anchor_node = torch::autograd::impl::gradient_edge(*anchor).function.get();
  refuse_double_backward = pybind11::object(refuse).release().ptr();
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  module.def("set_up", &set_up);
  module.def("defer", &defer);
}
