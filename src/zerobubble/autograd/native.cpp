// How does the node of function.py look without Python in it, for products with a weight matrix?
//
// Same results, errors and order as the Python way: only the host time differs. Items still go to
// the WeightQueue, in Python; ops.py says which formula belongs to which op.

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/extension.h>

#include <utility>

namespace {

using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

enum Kind { kLinear, kMatmul, kAddmm };

// Raises what a double backward raises, and pushes: the Python side of function.py.
PyObject* double_backward_error = nullptr;
at::Tensor* anchor = nullptr;

at::Tensor rows(const at::Tensor& x) { return x.dim() == 2 ? x : x.flatten(0, -2); }

// The gradient of x, as `_Matmul.input_gradient` of ops.py computes it.
at::Tensor input_gradient(const at::Tensor& x, const at::Tensor& right_t, const at::Tensor& dy) {
  const auto left = rows(x);
  const auto dy_rows = rows(dy);
  if (left.stride(0) == 1 && left.stride(1) == left.size(0)) {
    return right_t.t().mm(dy_rows.t()).t().reshape(x.sizes());
  }
  auto dx = dy_rows.mm(right_t);
  return x.dim() == 2 ? dx : at::_unsafe_view(dx, x.sizes());
}

bool reaches(torch::autograd::Node* leaf) {
  const auto* tasks = torch::autograd::get_current_graph_task_exec_info();
  if (tasks == nullptr || tasks->empty()) {
    return true;
  }
  const auto found = tasks->find(leaf);
  return found != tasks->end() && found->second.should_execute();
}

[[noreturn]] void throw_python_error() {
  python_error error;
  error.persist();
  throw error;
}

struct DeferredProduct : public torch::autograd::Node {
  Kind kind = kLinear;
  SavedVariable x, weight;
  bool needs_input_gradient = false;
  PyObject* split = nullptr;
  PyObject* push = nullptr;

  ~DeferredProduct() override {
    if (Py_IsInitialized()) {
      pybind11::gil_scoped_acquire gil;
      Py_XDECREF(split);
      Py_XDECREF(push);
    }
  }

  std::string name() const override { return "DeferredProduct"; }

  void release_variables() override {
    x.reset_data();
    weight.reset_data();
  }

  variable_list apply(variable_list&& gradients) override {
    const at::Tensor dy = std::move(gradients[0]);
    if (!dy.defined()) {
      return variable_list(2);
    }
    if (at::GradMode::is_enabled()) {
      raise_double_backward();
    }
    const auto input = x.unpack();
    const auto matrix = needs_input_gradient ? weight.unpack() : at::Tensor();
    if (reaches(next_edge(1).function.get())) {
      leave_to_w(input.detach(), dy);
    }
    if (!needs_input_gradient) {
      return variable_list(2);
    }
    return {input_gradient(input, kind == kLinear ? matrix : matrix.t(), dy), at::Tensor()};
  }

  void raise_double_backward() const {
    pybind11::gil_scoped_acquire gil;
    PyObject* nothing = PyObject_CallOneArg(double_backward_error, split);
    Py_XDECREF(nothing);
    throw_python_error();
  }

  void leave_to_w(const at::Tensor& input, const at::Tensor& dy) const {
    pybind11::gil_scoped_acquire gil;
    const auto input_object = pybind11::reinterpret_steal<pybind11::object>(THPVariable_Wrap(input));
    const auto dy_object = pybind11::reinterpret_steal<pybind11::object>(THPVariable_Wrap(dy));
    PyObject* arguments[] = {split, input_object.ptr(), dy_object.ptr()};
    PyObject* nothing = PyObject_Vectorcall(push, arguments, 3, nullptr);
    if (nothing == nullptr) {
      throw_python_error();
    }
    Py_DECREF(nothing);
  }
};

at::Tensor product(Kind kind, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  at::AutoDispatchBelowADInplaceOrView guard;
  switch (kind) {
    case kLinear:
      return at::linear(x, weight, bias.defined() ? std::optional<at::Tensor>(bias) : std::nullopt);
    case kMatmul:
      return at::matmul(x, weight);
    default:
      return at::addmm(bias, x, weight);
  }
}

// Return the product with its backward split; `push` takes (split, x, dy) at B.
at::Tensor defer(
    int kind, const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
    const pybind11::object& split, const pybind11::object& push) {
  const auto node = std::shared_ptr<DeferredProduct>(new DeferredProduct(), torch::autograd::deleteNode);
  node->kind = static_cast<Kind>(kind);
  node->needs_input_gradient = x.requires_grad();
  node->split = pybind11::object(split).release().ptr();
  node->push = pybind11::object(push).release().ptr();
  node->set_next_edges(torch::autograd::collect_next_edges(x, *anchor));
  auto y = product(node->kind, x, weight, bias.value_or(at::Tensor()));
  node->x = SavedVariable(x, false);
  if (node->needs_input_gradient) {
    node->weight = SavedVariable(weight, false);
  }
  torch::autograd::set_history(y, node);
  return y;
}

void set_up(const at::Tensor& new_anchor, const pybind11::object& new_error) {
  anchor = new at::Tensor(new_anchor);
  double_backward_error = pybind11::object(new_error).release().ptr();
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  module.def("set_up", &set_up);
  module.def("defer", &defer);
}
