// A "cuda" device that lies in host memory: strict device separation, counts waits. For CPU-only torch.
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/native/Resize.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/view_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/InferSize.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <set>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <map>
extern "C" { int PyRun_SimpleString(const char*); int PyGILState_Ensure(); void PyGILState_Release(int); }
namespace {
using at::Tensor; using c10::IValue;
const c10::DispatchKeySet KS(c10::DispatchKey::CUDA);
bool g_hook = false;
void note(const char* kind, const std::string& op) {
  if (!g_hook) return;
  int s = PyGILState_Ensure();
  std::string c = std::string("__import__('pretend_card').note('") + kind + "','" + op + "')";
  PyRun_SimpleString(c.c_str());
  PyGILState_Release(s);
}
struct Alloc final : at::Allocator {
  static void del(void* p) { std::free(p); }
  at::DataPtr allocate(size_t n) override {
    void* p = n ? std::aligned_alloc(64, (n + 63) / 64 * 64) : nullptr;
    if (p) std::memset(p, 0xFF, n);  // NaN, -1: what nobody wrote shows
    return {p, p, &del, at::Device(at::kCUDA, 0)};
  }
  at::DeleterFnPtr raw_deleter() const override { return &del; }
  void copy_data(void* d, const void* s, std::size_t n) const override { std::memcpy(d, s, n); }
};
Alloc g_alloc;
struct Guard final : c10::impl::DeviceGuardImplInterface {
  static constexpr c10::DeviceType static_type = c10::DeviceType::CUDA;
  Guard() = default;
  explicit Guard(c10::DeviceType) {}
  c10::DeviceType type() const override { return c10::DeviceType::CUDA; }
  c10::Device exchangeDevice(c10::Device) const override { return getDevice(); }
  c10::Device getDevice() const override { return c10::Device(c10::DeviceType::CUDA, 0); }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device d) const override { return c10::Stream(c10::Stream::DEFAULT, d); }
  c10::Stream getDefaultStream(c10::Device d) const override { return c10::Stream(c10::Stream::DEFAULT, d); }
  c10::Stream exchangeStream(c10::Stream s) const override { return s; }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}
};
Tensor empty_mf(c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
    std::optional<at::Device>, std::optional<bool>, std::optional<at::MemoryFormat> mf) {
  return at::detail::empty_generic(size, &g_alloc, KS, c10::dtype_or_default(dtype), mf);
}
Tensor empty_st(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> dtype,
    std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(size, stride, &g_alloc, KS, c10::dtype_or_default(dtype));
}
Tensor as_cpu(const Tensor& t) {
  c10::Storage st(c10::Storage::use_byte_size_t(), t.storage().nbytes(),
      c10::DataPtr(const_cast<void*>(t.storage().data()), c10::Device(c10::kCPU)), nullptr, false);
  auto impl = c10::make_intrusive<c10::TensorImpl>(std::move(st), c10::DispatchKeySet(c10::DispatchKey::CPU), t.dtype());
  impl->set_sizes_and_strides(t.sizes(), t.strides(), t.storage_offset());
  if (t.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  return Tensor(std::move(impl));
}
Tensor to_fake(const Tensor& c) {
  Tensor t = at::detail::empty_strided_generic(c.sizes(), c.strides(), &g_alloc, KS, c.scalar_type());
  Tensor a = as_cpu(t);
  c10::impl::ExcludeDispatchKeyGuard no(c10::autograd_dispatch_keyset);
  if (c.numel()) a.copy_(c);
  return t;
}
const Tensor& resize_fake(const Tensor& self_, c10::IntArrayRef size, std::optional<at::MemoryFormat>) {
  auto& self = const_cast<Tensor&>(self_);
  auto* impl = self.unsafeGetTensorImpl();
  int64_t n = 1; for (auto s : size) n *= s;
  size_t need = (n + self.storage_offset()) * self.dtype().itemsize();
  if (need > self.storage().nbytes()) {
    auto p = g_alloc.allocate(need);
    if (self.storage().nbytes()) std::memcpy(p.get(), self.storage().data(), self.storage().nbytes());
    self.storage().unsafeGetStorageImpl()->set_data_ptr(std::move(p));
    self.storage().unsafeGetStorageImpl()->set_nbytes(need);
  }
  impl->set_sizes_contiguous(size);
  return self;
}
Tensor& copy_fake(Tensor& self, const Tensor& src, bool non_blocking) {
  if (self.is_cuda() && !src.is_cuda()) note(non_blocking ? "h2d_async" : "h2d", "copy_");
  if (!self.is_cuda() && src.is_cuda()) note("d2h", "copy_");
  c10::impl::ExcludeDispatchKeyGuard no(c10::autograd_dispatch_keyset);
  Tensor d = self.is_cuda() ? as_cpu(self) : self, s = src.is_cuda() ? as_cpu(src) : src;
  d.copy_(s);
  return self;
}
at::Scalar lsd(const Tensor& t) { note("sync", "_local_scalar_dense"); return as_cpu(t).item(); }
Tensor& set_st(Tensor& self, at::Storage st, int64_t off, c10::IntArrayRef size, c10::IntArrayRef stride) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(st)); impl->set_storage_offset(off);
  impl->set_sizes_and_strides(size, stride.size() == size.size() ? stride : impl->strides());
  return self;
}
bool syncs(const std::string& n) {
  static const std::set<std::string> s{"aten::nonzero","aten::masked_select","aten::_unique2","aten::unique_dim",
    "aten::unique_consecutive","aten::equal","aten::bincount","aten::histc","aten::_unique","aten::multinomial"};
  return s.count(n) > 0;
}
void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const std::string name = schema.name();
  const auto n = schema.arguments().size();
  const auto begin = stack->size() - n;
  bool index_op = name == "aten::index" || name == "aten::index_put_" || name == "aten::_index_put_impl_" || name == "aten::index_put" || name == "aten::_unsafe_index";
  std::vector<std::pair<Tensor, Tensor>> pairs;  // original, alias
  std::vector<std::pair<Tensor, Tensor>> regrown;
  bool host = false, boolean = false; std::string shapes;
  auto convert = [&](const Tensor& t, bool written, size_t arg) -> Tensor {
    if (!t.defined()) return t;
    if (!t.is_cuda()) {
      if (t.dim() > 0 || !(index_op || true)) host = true;
      return t;
    }
    if (index_op && arg == 1 && (t.scalar_type() == at::kBool || t.scalar_type() == at::kByte)) boolean = true;
    for (auto& p : pairs) if (p.first.is_same(t)) return p.second;
    Tensor a;
    if (written && t.numel() == 0) { a = at::empty(t.sizes(), t.options().device(at::kCPU)); regrown.emplace_back(t, a); }
    else a = as_cpu(t);
    pairs.emplace_back(t, a);
    return a;
  };
  bool host_index = false;
  for (size_t i = 0; i < n; ++i) {
    auto& iv = (*stack)[begin + i];
    auto* ai = schema.arguments()[i].alias_info();
    bool w = ai && ai->isWrite();
    bool before = host;
    if (iv.isTensor()) { iv = IValue(convert(iv.toTensor(), w, i)); }
    else if (iv.isTensorList()) { c10::List<Tensor> l; for (const Tensor& t : iv.toTensorVector()) l.push_back(convert(t, w, i)); iv = IValue(l); }
    else if (iv.isOptionalTensorList()) {
      c10::List<std::optional<Tensor>> l;
      for (const auto& o : iv.toOptionalTensorVector()) l.push_back(o.has_value() ? std::optional<Tensor>(convert(*o, w, i)) : std::nullopt);
      iv = IValue(l);
    } else if (iv.isDevice()) { iv = IValue(c10::Device(c10::kCPU)); }
    if (index_op && i == 1 && host && !before) { host_index = true; host = false; }
  }
  if (host && !pairs.empty() && name != "aten::_foreach_copy_")
    TORCH_CHECK(false, "FAKECUDA: ", name, ".", schema.overload_name(), " mixes cuda and cpu tensors");
  if (host_index) note("host_index", name);
  if (boolean) note("sync", name + " (bool mask)");
  if (syncs(name) || (name == "aten::repeat_interleave" && schema.overload_name() == "Tensor")) note("sync", name);
  if (g_hook) note("op", name);
  {
    at::AutoDispatchBelowADInplaceOrView below;
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  }
  for (auto& [t, a] : regrown) { resize_fake(t, a.sizes(), std::nullopt);
    t.unsafeGetTensorImpl()->set_sizes_and_strides(a.sizes(), a.strides());
    c10::impl::ExcludeDispatchKeyGuard no(c10::autograd_dispatch_keyset);
    if (a.numel()) as_cpu(t).copy_(a); }
  auto back = [&](const Tensor& r) -> Tensor {
    if (!r.defined() || r.is_cuda()) return r;
    for (auto& p : pairs) if (p.second.is_same(r)) return p.first;
    for (auto& p : pairs) if (r.numel() && r.has_storage() && p.second.storage().data() == r.storage().data() && r.storage().nbytes())
      TORCH_CHECK(false, "FAKECUDA: view from ", name);
    return to_fake(r);
  };
  const auto rets = schema.returns().size();
  for (size_t i = stack->size() - rets; i < stack->size(); ++i) {
    auto& iv = (*stack)[i];
    if (iv.isTensor()) iv = IValue(back(iv.toTensor()));
    else if (iv.isTensorList()) { c10::List<Tensor> l; for (const Tensor& t : iv.toTensorVector()) l.push_back(back(t)); iv = IValue(l); }
  }
}
}
struct FakeHooks final : at::CUDAHooksInterface {
  explicit FakeHooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  bool isPinnedPtr(const void*) const override { return false; }
};
namespace {
void set_hook(bool on) { g_hook = on; }
}
namespace c10::impl { C10_REGISTER_GUARD_IMPL(CUDA, Guard) }
namespace at { using ::FakeHooks; C10_REGISTER_CLASS(CUDAHooksRegistry, CUDAHooks, FakeHooks) }
TORCH_LIBRARY_IMPL(_, CUDA, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }
TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("empty.memory_format", &empty_mf);
  m.impl("empty_strided", &empty_st);
  m.impl("as_strided", [](const Tensor& s, c10::IntArrayRef a, c10::IntArrayRef b, std::optional<int64_t> o) { return at::native::as_strided_tensorimpl(s, a, b, o); });
  m.impl("view", [](const Tensor& s, c10::IntArrayRef a) { return at::native::view(s, a); });
  m.impl("_reshape_alias", [](const Tensor& s, c10::IntArrayRef a, c10::IntArrayRef b) { return at::native::_reshape_alias(s, a, b); });
  m.impl("unfold", [](const Tensor& s, int64_t a, int64_t b, int64_t c) { return at::native::unfold(s, a, b, c); });
  m.impl("resize_", &resize_fake);
  m.impl("copy_", &copy_fake);
  m.impl("_local_scalar_dense", &lsd);
  m.impl("set_.source_Storage_storage_offset", &set_st);
}
TORCH_LIBRARY(pretend_card, m) { m.def("set_hook(bool on) -> ()"); }
TORCH_LIBRARY_IMPL(pretend_card, CompositeExplicitAutograd, m) { m.impl("set_hook", &set_hook); }
