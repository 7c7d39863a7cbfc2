/* A stand-in for libtorch_cpu.so: the functions of torch's stable C interface by which
   precomp reads tensors, for any number of tensors, all at one address. */
#include <stdint.h>

#define PUBLIC __attribute__((visibility("default")))

PUBLIC uint64_t fake_data = 0x9000;
PUBLIC int32_t fake_type = 1; /* CUDA */
PUBLIC int32_t fake_status;
PUBLIC void *fake_handle; /* what the last handle pointed to */

PUBLIC int32_t
aoti_torch_device_type_cuda(void)
{
    return 1;
}

PUBLIC int32_t
aoti_torch_get_device_type(void **handle, int32_t *type)
{
    fake_handle = *handle;
    *type = fake_type;
    return 0;
}

PUBLIC int32_t
aoti_torch_get_device_index(void **handle, int32_t *index)
{
    fake_handle = *handle;
    *index = 0;
    return 0;
}

PUBLIC int32_t
aoti_torch_get_data_ptr(void **handle, void **data)
{
    fake_handle = *handle;
    *data = (void *)(uintptr_t)fake_data;
    return fake_status;
}
