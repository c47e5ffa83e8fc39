"""Values and rules: device, dtype, layout, meta, flags, errors. Nothing here touches a device."""
